//! Descriptors that cross a socket together with bytes (SCM_RIGHTS of unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Space for the descriptors of one message, three at most.
const SPACE: usize = rustix::cmsg_space!(ScmRights(3));

/// Sends bytes, at least one, with these descriptors.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives bytes and their descriptors: the number of bytes, and the descriptors; `None` if the other end is closed.
pub(super) fn receive<const N: usize>(
    socket: impl AsFd,
    bytes: &mut [u8],
) -> io::Result<Option<(usize, [OwnedFd; N])>> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let all = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let all: Vec<OwnedFd> = all.flatten().collect();
    let found = <[OwnedFd; N]>::try_from(all);
    found
        .map(|descriptors| Some((received.bytes, descriptors)))
        .map_err(|all| io::Error::other(format!("{} of {N} descriptors came", all.len())))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_cross_the_socket_with_their_bytes() {
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"across").unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, b"two", &[file.as_fd(), ours.as_fd()]).unwrap();
        let mut bytes = [0; 8];
        let (count, [came, _]) = receive(&theirs, &mut bytes).unwrap().unwrap();
        assert_eq!((&bytes[..count], File::from(came).metadata().unwrap().len()), (&b"two"[..], 6));
        send(&ours, b"one", &[file.as_fd()]).unwrap();
        let few = receive::<2>(&theirs, &mut bytes).unwrap_err();
        assert_eq!(few.to_string(), "1 of 2 descriptors came");
    }

    #[test]
    fn a_closed_socket_has_no_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(receive::<1>(&theirs, &mut [0]).unwrap().is_none());
    }
}
