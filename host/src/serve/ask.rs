//! How other threads ask the one that owns a thing: a closure goes there by a channel, its answer comes
//! back. Ringing the bell ends the owner's wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use thiserror::Error;

type Question<T> = Box<dyn FnOnce(&mut T) + Send>;

/// The owner has stopped; nobody answers any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the device has stopped")]
pub struct Stopped;

/// Asks the owner; may be cloned and sent to any thread.
pub struct Asker<T> {
    questions: mpsc::Sender<Question<T>>,
    bell: Arc<OwnedFd>,
}

impl<T> Clone for Asker<T> {
    fn clone(&self) -> Self {
        Self { questions: self.questions.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> std::fmt::Debug for Asker<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asker")
    }
}

impl<T> Asker<T> {
    /// Has the owner do something between two of its turns, and waits for the answer.
    ///
    /// # Errors
    /// The owner has stopped, before or meanwhile.
    pub fn ask<R: Send + 'static>(
        &self,
        question: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.tell(move |owned| {
            // Whoever asked may have gone.
            let _ = answer.send(question(owned));
        })?;
        answered.recv().map_err(|_| Stopped)
    }

    /// As [`Asker::ask`], but waits for nothing.
    ///
    /// # Errors
    /// The owner has stopped.
    pub fn tell(&self, question: impl FnOnce(&mut T) + Send + 'static) -> Result<(), Stopped> {
        self.questions.send(Box::new(question)).map_err(|_| Stopped)?;
        // Full (AGAIN) means that it rings already; any other failure leaves the question for the next turn.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        Ok(())
    }
}

/// The owner's end.
pub(super) struct Questions<T> {
    questions: mpsc::Receiver<Question<T>>,
    bell: Arc<OwnedFd>,
}

impl<T> Questions<T> {
    /// Answers everything that was asked. Returns whether there was anything.
    pub(super) fn answer(&self, owned: &mut T) -> bool {
        let mut any = false;
        while let Ok(question) = self.questions.try_recv() {
            question(owned);
            any = true;
        }
        any
    }

    /// Becomes readable when somebody asks.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes the bell's ringing back, before the questions are answered.
    pub(super) fn heard(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
    }
}

/// Both ends.
pub(super) fn channel<T>() -> Result<(Asker<T>, Questions<T>), Errno> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = mpsc::channel();
    let asker = Asker { questions: sender, bell: Arc::clone(&bell) };
    Ok((asker, Questions { questions: receiver, bell }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_back_and_a_stopped_owner_answers_nobody() {
        let (asker, questions) = channel::<u32>().unwrap();
        let other = std::thread::spawn({
            let asker = asker.clone();
            move || asker.ask(|owned| std::mem::replace(owned, 7))
        });
        let mut owned = 5;
        while !questions.answer(&mut owned) {
            let fd = rustix::event::PollFd::from_borrowed_fd(
                questions.bell(),
                rustix::event::PollFlags::IN,
            );
            rustix::event::poll(&mut [fd], None).unwrap();
            questions.heard();
        }
        assert_eq!((other.join().unwrap(), owned), (Ok(5), 7));
        drop(questions);
        assert_eq!(asker.ask(|_| ()), Err(Stopped));
    }
}
