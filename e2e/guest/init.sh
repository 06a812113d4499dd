#!/bin/busybox sh
# The guest's first program: mounts, modules, then the agent. When the agent ends, the guest is switched off.
export PATH=/usr/bin:/usr/sbin:/usr/lib/busybox HOME=/ PYTHONDONTWRITEBYTECODE=1
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox mount -t tmpfs tmpfs /tmp
while read -r module; do
    /bin/busybox insmod "/modules/$module" || echo "init: $module cannot be loaded"
done </modules/order
/usr/bin/python3 /agent.py || echo "init: the agent has failed"
/bin/busybox poweroff -f
