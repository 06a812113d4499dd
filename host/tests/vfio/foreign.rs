//! Somebody else's client: that of the crate `vfio_user`, which cloud-hypervisor uses.

use std::os::fd::AsRawFd;

use softrnic_device::pci::ERNIC_BAR;
use softrnic_host::vfio::wire::{IRQ_MSIX, irq_set};
use vfio_user::Client;

use crate::bench::Bench;
use crate::guest::{interrupt_target, memory_file, wait_for};

#[test]
fn the_client_of_cloud_hypervisor_gets_along_with_our_server() {
    let bench = Bench::start(1);
    let mut client = Client::new(bench.path()).unwrap();
    let bar = ERNIC_BAR as u32;
    let region = client.region(bar).unwrap();
    assert_eq!((region.size, region.flags), (0x20_0000, 3));
    let file = memory_file(0x10_0000);
    client.dma_map(0, 0x4000_0000, 0x10_0000, file.as_raw_fd()).unwrap();
    client.region_write(bar, 0x10_0010, &[1, 2, 3, 4]).unwrap();
    let mut bytes = [0; 4];
    client.region_read(bar, 0x10_0010, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4]);
    let info = client.get_irq_info(IRQ_MSIX).unwrap();
    assert_eq!((info.index, info.count), (IRQ_MSIX, 1));
    let target = interrupt_target();
    let set = irq_set::DATA_EVENTFD | irq_set::TRIGGER;
    client.set_irqs(IRQ_MSIX, set, 0, 1, &[target.as_raw_fd()]).unwrap();
    client.set_irqs(IRQ_MSIX, irq_set::DATA_NONE | irq_set::TRIGGER, 0, 1, &[]).unwrap();
    // Its requests have no reply that tells; a reset is answered in order.
    client.reset().unwrap();
    assert_eq!(wait_for(&target, 20), Some(1));
    client.region_read(bar, 0x10_0010, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    client.dma_unmap(0x4000_0000, 0x10_0000).unwrap();
    client.shutdown().unwrap();
    assert_eq!(bench.stop()[0].server.counters().refused, 0);
}
