//! The participants of a context, and the calls to them: in order, with panics caught and failures collected.

use std::sync::Arc;

use crate::failure::{Failure, Step};
use crate::panic::caught;
use crate::participant::{BoxError, Participant, Rollback};

/// In the order in which they were added, each once.
#[derive(Clone, Default)]
pub(crate) struct Participants {
    list: Vec<Arc<dyn Participant>>,
}

impl Participants {
    /// False if it is among them already.
    pub fn add(&mut self, participant: Arc<dyn Participant>) -> bool {
        let new = self.place_of(&participant).is_none();
        if new {
            self.list.push(participant);
        }
        new
    }

    /// False if it is not among them.
    pub fn remove(&mut self, participant: &Arc<dyn Participant>) -> bool {
        let place = self.place_of(participant);
        place.map(|place| self.list.remove(place)).is_some()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Calls one; what it failed with, a panic included, is added to the failures.
    pub fn call<T>(
        &self,
        place: usize,
        step: Step,
        failures: &mut Vec<Failure>,
        call: impl FnOnce(&dyn Participant) -> Result<T, BoxError>,
    ) -> Option<T> {
        let answer = caught(|| call(&*self.list[place])).unwrap_or_else(|panic| Err(Box::new(panic)));
        answer
            .map_err(|source| {
                let (name, lost) = self.name(place);
                failures.push(Failure::Participant { name, step, source });
                failures.extend(lost);
            })
            .ok()
    }

    /// Calls one after the other until one fails; true if none has.
    pub fn each(
        &self,
        step: Step,
        failures: &mut Vec<Failure>,
        mut call: impl FnMut(usize, &dyn Participant) -> Result<(), BoxError>,
    ) -> bool {
        (0..self.len()).all(|place| self.call(place, step, failures, |one| call(place, one)).is_some())
    }

    /// Calls every one, whatever became of those before.
    pub fn all(
        &self,
        step: Step,
        failures: &mut Vec<Failure>,
        call: impl Fn(&dyn Participant) -> Result<(), BoxError>,
    ) {
        for place in 0..self.len() {
            self.call(place, step, failures, &call);
        }
    }

    /// Rolls every one back, whatever became of those before. Clean if all of them are.
    pub fn roll_back(&self, failures: &mut Vec<Failure>) -> Rollback {
        let mut outcome = Rollback::Clean;
        for place in 0..self.len() {
            match self.call(place, Step::Rollback, failures, |one| one.rollback()) {
                Some(Rollback::Clean) => {}
                Some(Rollback::Dirty) => {
                    outcome = Rollback::Dirty;
                    let (name, lost) = self.name(place);
                    failures.push(Failure::Dirty { name });
                    failures.extend(lost);
                }
                None => outcome = Rollback::Dirty,
            }
        }
        outcome
    }

    /// The name of the participant at a place, counted from 0; its place counted from 1 if it cannot tell, and why not.
    pub fn name(&self, place: usize) -> (String, Option<Failure>) {
        match caught(|| self.list[place].name().into_owned()) {
            Ok(name) => (name, None),
            Err(panic) => {
                let name = format!("participant {}", place + 1);
                let lost = Failure::Participant { name: name.clone(), step: Step::Name, source: Box::new(panic) };
                (name, Some(lost))
            }
        }
    }

    fn place_of(&self, participant: &Arc<dyn Participant>) -> Option<usize> {
        // The same one, not an equal one; and two pointers to one object may have different tables of methods.
        self.list.iter().position(|one| std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(participant)))
    }
}

impl FromIterator<Arc<dyn Participant>> for Participants {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Participant>>>(them: I) -> Participants {
        let mut participants = Participants::default();
        for one in them {
            participants.add(one);
        }
        participants
    }
}
