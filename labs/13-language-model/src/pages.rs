//! The text that the model learns from unless another is given: pages of this book, compiled into the program.

use lockstep::data::{Texts, prose};

const PAGES: [&str; 13] = [
    include_str!("../../../book/src/introduction.md"),
    include_str!("../../../book/src/01-one-device.md"),
    include_str!("../../../book/src/02-processes-from-one-program.md"),
    include_str!("../../../book/src/03-ranks-from-the-environment.md"),
    include_str!("../../../book/src/04-point-to-point.md"),
    include_str!("../../../book/src/05-collectives.md"),
    include_str!("../../../book/src/06-snapshots-and-resume.md"),
    include_str!("../../../book/src/07-cifar-resnet.md"),
    include_str!("../../../book/src/08-image-folder.md"),
    include_str!("../../../book/src/09-many-nodes.md"),
    include_str!("../../../book/src/10-nccl.md"),
    include_str!("../../../book/src/11-scaling.md"),
    include_str!("../../../book/src/12-parallelism.md"),
];
const HELD_OUT: &str = include_str!("../../../book/src/how-ddp-works.md");

/// The prose of the chapters, and of a page that is held out.
pub(crate) fn texts() -> Texts {
    Texts { train: PAGES.map(prose).concat(), validation: prose(HELD_OUT) }
}
