//! Which keys a transaction writes.

use fastrand::Rng;
use seriatim_core::{ChangeId, ChangeSet};

/// Draws change sets: so many keys, each one out of all with the same chance.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    rng: Rng,
    keys: u64,
    writes: u32,
    changes: ChangeSet,
}

impl Keys {
    pub fn new(seed: u64, keys: u64, writes: u32) -> Keys {
        Keys { rng: Rng::with_seed(seed), keys, writes, changes: ChangeSet::default() }
    }

    /// The next change set; good until the next call.
    pub fn next(&mut self) -> &ChangeSet {
        draw(&mut self.rng, self.keys, self.writes, &mut self.changes);
        &self.changes
    }

    /// Writes the next change set into memory that is there.
    pub fn fill(&mut self, changes: &mut ChangeSet) {
        draw(&mut self.rng, self.keys, self.writes, changes);
    }
}

fn draw(rng: &mut Rng, keys: u64, writes: u32, changes: &mut ChangeSet) {
    changes.writes.clear();
    // Hashed as a client would: the bits of an id say nothing about its neighbours.
    changes.writes.extend((0..writes).map(|_| ChangeId::of(&rng.u64(0..keys).to_le_bytes())));
}

/// A seed for one of many generators that share a run's seed.
pub(crate) fn seed_of(seed: u64, index: u64) -> u64 {
    // Weyl's sequence: as many different seeds as there are indices.
    seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn one_seed_draws_the_same_keys_again_and_another_draws_others() {
        let draw = |seed| {
            let mut keys = Keys::new(seed, 1 << 40, 4);
            (0..100).map(|_| keys.next().clone()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_ne!(seed_of(7, 0), seed_of(7, 1));
    }

    #[test]
    fn every_key_and_no_other_is_drawn() {
        let mut keys = Keys::new(1, 10, 3);
        let drawn: HashSet<ChangeId> = (0..1000).flat_map(|_| keys.next().writes.clone()).collect();
        let all: HashSet<ChangeId> = (0..10u64).map(|key| ChangeId::of(&key.to_le_bytes())).collect();
        assert_eq!(drawn, all);
    }
}
