//! Commits in two steps, checkpoints and images against a server that forgets, cuts connections, and changes its mind.

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fake::{Fake, Hook, Verdict};
use seriatim_client::{Client, ClientOptions, Error};
use seriatim_core::*;
use seriatim_wire::*;

fn connect(fake: &Fake, options: ClientOptions) -> Client {
    Client::connect(fake.address(), options).unwrap()
}

fn changes() -> ChangeSet {
    ChangeSet::of_writes([b"k".as_slice(), b"l"])
}

/// Answers commits by digest as a server does after a restart; others it serves.
fn forgetful() -> Hook {
    Box::new(|_, request, id, out| match request {
        Request::Commit(items) if items.clone().any(|item| item.checked.is_some()) => {
            let outcomes: Vec<_> = items
                .clone()
                .map(|item| {
                    assert_eq!(item.checked, Some(changes().digest()));
                    Err(CommitError::NeedChanges { tx: item.tx })
                })
                .collect();
            reply::commit(out, id, outcomes);
            Verdict::Done
        }
        Request::Commit(items) => {
            assert!(items.clone().all(|item| item.change_set() == changes()));
            Verdict::Serve
        }
        _ => Verdict::Serve,
    })
}

#[test]
fn a_checked_set_that_the_server_has_forgotten_is_brought_along() {
    for attempts_max in [1, 8] {
        let fake = Fake::with(forgetful());
        let client = connect(&fake, ClientOptions { attempts_max, ..ClientOptions::default() });
        let tx = client.begin(BeginOptions::default()).unwrap();
        client.commit_checked(tx.write_pointer(), &changes(), 0).unwrap();
        assert!(matches!(fake.status_of(tx.id()), Status::Committed(_)));
        tx.leave_open();
    }
}

#[test]
fn a_commit_by_digest_whose_answer_was_lost_is_known_to_have_committed() {
    let mut lost = false;
    let fake = Fake::with(move |_, request, _, _| match request {
        Request::Commit(_) if !std::mem::replace(&mut lost, true) => Verdict::ServeAndClose,
        _ => Verdict::Serve,
    });
    let client = connect(&fake, ClientOptions::default());
    let tx = client.begin(BeginOptions::default()).unwrap();
    let csn = client.commit_checked(tx.write_pointer(), &changes(), 0).unwrap();
    assert_eq!(fake.status_of(tx.id()), Status::Committed(csn));
    tx.leave_open();
}

/// Apache Tephra's client goes on for half a minute, and then reports another error.
#[test]
fn a_checkpoint_of_a_transaction_that_has_ended_is_asked_for_once() {
    let ended = Status::Invalid(InvalidCause::Expired);
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    let fake = Fake::with(move |_, request, id, out| match request {
        Request::Checkpoint(items) => {
            counted.fetch_add(1, Ordering::Relaxed);
            let answers: Vec<_> = items.clone().map(|(tx, _)| Err(CommitError::NotInProgress { tx, ended })).collect();
            reply::checkpoint(out, id, answers);
            Verdict::Done
        }
        _ => Verdict::Serve,
    });
    let client = connect(&fake, ClientOptions::default());
    let tx = client.begin(BeginOptions::default()).unwrap();
    match tx.checkpoint().unwrap_err() {
        Error::Commit(CommitError::NotInProgress { ended: told, .. }) => assert_eq!(told, ended),
        other => panic!("{other}"),
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// Asked by number, so that an answer that was lost leaves no pointer behind that nobody knows of.
#[test]
fn a_checkpoint_whose_answer_was_lost_is_asked_for_again_by_the_same_number() {
    let mut numbers = Vec::new();
    let fake = Fake::with(move |_, request, frame, out| match request {
        Request::Checkpoint(items) => {
            let (tx, number) = items.clone().next().expect("one item");
            numbers.push(number);
            if numbers.len() == 1 {
                return Verdict::ServeAndClose;
            }
            assert!(numbers.iter().skip(1).eq([1, 2].iter().take(numbers.len() - 1)), "{numbers:?}");
            let given = numbers.len() as u64 - 1;
            reply::checkpoint(out, frame, [Ok(WritePointer(tx.0 + given))]);
            Verdict::Done
        }
        _ => Verdict::Serve,
    });
    let client = connect(&fake, ClientOptions::default());
    let tx = client.begin(BeginOptions::default()).unwrap();
    let id = tx.id();
    assert_eq!(tx.checkpoint().unwrap(), WritePointer(id.0 + 1));
    assert_eq!(tx.checkpoint().unwrap(), WritePointer(id.0 + 2));
    assert_eq!(tx.checkpoint_pointers(), [WritePointer(id.0 + 1), WritePointer(id.0 + 2)]);
    assert_eq!(tx.write_pointer(), WritePointer(id.0 + 2));
    tx.leave_open();
}

/// Serves an image in pages of three bytes; from some page on it is another one.
fn paged(image: &'static [u8], another_from: u64, short_at: u64) -> Hook {
    Box::new(move |_, request, id, out| match request {
        Request::Image(asked) => {
            let rest = &image[asked.offset as usize..];
            let bytes = if asked.offset >= short_at { &rest[..0] } else { &rest[..rest.len().min(3)] };
            let number = if asked.offset >= another_from { 9 } else { 8 };
            reply::image(out, id, ImagePage { number, total: image.len() as u64, bytes });
            Verdict::Done
        }
        _ => Verdict::Serve,
    })
}

#[test]
fn an_image_comes_page_by_page_and_never_from_two() {
    let image = b"ten bytes.";
    let dump = |another_from, short_at| {
        let fake = Fake::with(paged(image, another_from, short_at));
        let client = connect(&fake, ClientOptions::default());
        let mut out = Vec::new();
        client.dump_image(&mut out).map(|bytes| (bytes, out))
    };
    assert_eq!(dump(u64::MAX, u64::MAX).unwrap(), (10, image.to_vec()));
    assert!(matches!(dump(6, u64::MAX).unwrap_err(), Error::ImageGone { read: 6 }));
    assert!(matches!(dump(u64::MAX, 3).unwrap_err(), Error::ImageGone { read: 3 }));
}

#[test]
fn an_image_that_cannot_be_written_is_an_error_of_its_own() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let fake = Fake::with(paged(b"image", u64::MAX, u64::MAX));
    let client = connect(&fake, ClientOptions::default());
    match client.dump_image(&mut Full).unwrap_err() {
        Error::Write(error) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
        other => panic!("{other}"),
    }
    client.ping().expect("the connection is as good as before");
}
