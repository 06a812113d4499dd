#!/bin/busybox sh
# The guest's first program: mounts, modules, huge pages, network; then a shell that reads its lines from the second
# serial port.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
    insmod "/modules/$module" || echo "init: $module cannot be loaded"
done </modules/order
echo 24 >/proc/sys/vm/nr_hugepages
mount -t hugetlbfs none /huge
stty -F /dev/ttyS1 raw -echo
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
# Our NICs, in the order of the bus.
number=0
for device in /sys/bus/pci/devices/*; do
    if [ "$(cat "$device/vendor") $(cat "$device/device")" = "0x10ee 0x903f" ]; then
        number=$((number + 1))
        ln -s "$device" "/tmp/nic$number"
    fi
done
exec </dev/ttyS1 >/dev/ttyS1
echo "@ready $number"
while read -r line; do
    # In a shell of its own: half a line, from while the terminal was being set up, must not end this one.
    sh -c "$line"
done
