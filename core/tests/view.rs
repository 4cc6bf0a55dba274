//! Visibility by values: what a transaction sees of its snapshot and of itself, level by level.
//!
//! The values are those of Apache Tephra's own suite for its transaction value; rows count its scenarios.
//!
//! | Tephra row | test |
//! |---|---|
//! | 62 | `snapshot_level_shows_every_own_checkpoint` |
//! | 63 | `snapshot_level_shows_the_own_pointer_without_checkpoints` |
//! | 64 | `exclude_current_hides_only_the_newest_checkpoint` |
//! | 65 | `exclude_current_hides_all_own_writes_before_the_first_checkpoint` |
//! | 66 | `snapshot_all_sees_what_snapshot_sees` |
//! | 67 | `the_greatest_version_of_an_all_visible_view_does_not_overflow` |
//! | 68 | `the_prune_bound_stays_below_what_is_open_and_at_what_is_invalid` |

use std::sync::Arc;

use seriatim_core::*;

fn snapshot(read_pointer: u64, invalid: &[u64], in_progress: &[u64]) -> Arc<Snapshot> {
    let set = |pointers: &[u64]| pointers.iter().copied().map(WritePointer).collect::<PointerSet>();
    let invalid = InvalidSet { version: 1, pointers: set(invalid), intervals: Vec::new() };
    Arc::new(Snapshot {
        read_pointer: WritePointer(read_pointer),
        in_progress: set(in_progress),
        invalid: Arc::new(invalid),
        ..Snapshot::default()
    })
}

/// Transaction 200 over a snapshot that ends at 100.
fn view(visibility: Visibility, checkpoints: &[u64]) -> TransactionView {
    let begun = TransactionView::new(WritePointer(200), snapshot(100, &[90, 110, 190], &[95, 120, 150]));
    let view = begun.with_visibility(visibility);
    checkpoints.iter().fold(view, |view, checkpoint| view.with_checkpoint(WritePointer(*checkpoint)))
}

/// Of all versions from 80 to 300, those that are visible, are exactly the committed ones and these own ones.
fn sees_of_its_own(view: &TransactionView, own: &[u64]) {
    for version in 80..=300 {
        let committed = version <= 100 && !matches!(version, 90 | 95);
        let expected = committed || own.contains(&version);
        assert_eq!(view.is_visible(WritePointer(version)), expected, "version {version} in {view:?}");
    }
}

#[test]
fn snapshot_level_shows_every_own_checkpoint() {
    let view = view(Visibility::Snapshot, &[220, 250]);
    sees_of_its_own(&view, &[200, 220, 250]);
    assert_eq!((view.id(), view.write_pointer()), (WritePointer(200), WritePointer(250)));
    assert!(view.pointers().map(|pointer| pointer.0).eq([200, 220, 250]));
}

#[test]
fn snapshot_level_shows_the_own_pointer_without_checkpoints() {
    let view = view(Visibility::Snapshot, &[]);
    sees_of_its_own(&view, &[200]);
    assert_eq!(view.write_pointer(), view.id());
}

#[test]
fn exclude_current_hides_only_the_newest_checkpoint() {
    let view = view(Visibility::SnapshotExcludeCurrent, &[220, 250]);
    sees_of_its_own(&view, &[200, 220]);
    assert!(view.is_own(WritePointer(250)), "hidden is not foreign");
}

#[test]
fn exclude_current_hides_all_own_writes_before_the_first_checkpoint() {
    sees_of_its_own(&view(Visibility::SnapshotExcludeCurrent, &[]), &[]);
}

#[test]
fn snapshot_all_sees_what_snapshot_sees() {
    sees_of_its_own(&view(Visibility::SnapshotAll, &[220, 250]), &[200, 220, 250]);
    sees_of_its_own(&view(Visibility::SnapshotAll, &[]), &[200]);
    assert!(Visibility::SnapshotAll.shows_all_own() && !Visibility::Snapshot.shows_all_own());
}

#[test]
fn the_greatest_version_of_an_all_visible_view_does_not_overflow() {
    let all = TransactionView::all_visible();
    assert_eq!(all.version_max(), WritePointer::MAX);
    for version in [WritePointer(0), WritePointer(1), WritePointer(WritePointer::MAX.0 - 1), WritePointer::MAX] {
        assert!(all.is_visible(version), "{version}");
    }
    assert_eq!(all.settled(), WritePointer(WritePointer::MAX.0 - 1));
    // An ordinary one starts its scans at its newest own version.
    assert_eq!(view(Visibility::Snapshot, &[220, 250]).version_max(), WritePointer(250));
}

#[test]
fn the_prune_bound_stays_below_what_is_open_and_at_what_is_invalid() {
    let bound = |read_pointer, id, invalid: &[u64], in_progress: &[u64]| {
        TransactionView::new(WritePointer(id), snapshot(read_pointer, invalid, in_progress)).prune_upper_bound().0
    };
    assert_eq!(bound(100, 100, &[10, 30], &[80, 90]), 30);
    assert_eq!(bound(100, 100, &[10, 95], &[80, 90]), 79);
    assert_eq!(bound(100, 110, &[10], &[]), 10);
    assert_eq!(bound(100, 110, &[], &[60]), 59);
    assert_eq!(bound(100, 110, &[], &[50]), 49);
    assert_eq!(bound(100, 110, &[], &[]), 99);
    // Up to its read pointer a snapshot knows of everything that is open, and not beyond.
    assert_eq!(bound(100, 110, &[150], &[]), 100);
    // An interval that a crash left counts as a whole.
    let mut with_interval = Snapshot::clone(&snapshot(100, &[10], &[]));
    Arc::make_mut(&mut with_interval.invalid).intervals.push((40, 50));
    assert_eq!(TransactionView::new(WritePointer(110), Arc::new(with_interval)).prune_upper_bound(), WritePointer(49));
}

#[test]
fn a_checkpoint_leaves_level_and_snapshot_as_they_are() {
    let before = view(Visibility::SnapshotExcludeCurrent, &[220]);
    let after = before.clone().with_checkpoint(WritePointer(250));
    assert_eq!(after.visibility(), before.visibility());
    assert!(Arc::ptr_eq(after.snapshot(), before.snapshot()));
    // What was hidden as current is shown now; the earlier view knows nothing of it.
    assert!(after.is_visible(WritePointer(220)) && !before.is_visible(WritePointer(220)));
    assert_eq!(before.checkpoints(), [WritePointer(220)]);
}

#[test]
#[should_panic(expected = "does not come after")]
fn a_checkpoint_that_was_never_handed_out_is_a_mistake() {
    let _ = view(Visibility::Snapshot, &[220]).with_checkpoint(WritePointer(210));
}
