//! How much processor time a thread, or another process of this machine, has used.

use std::fs;
use std::time::Duration;

/// Ticks a second in which the kernel tells programs times, on every architecture that is in use.
const TICKS_PER_S: f64 = 100.0;

/// Processor time that the calling thread has used so far, up to one tick of the scheduler ago. `None` if this kernel does
/// not say.
pub(crate) fn of_this_thread() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Processor time that a process has used so far, all its threads together, in steps of 10 ms. `None` if it is gone.
pub(crate) fn of_process(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(Duration::from_secs_f64(ticks_in(&stat)? as f64 / TICKS_PER_S))
}

/// User and system time of a line of `/proc/PID/stat`, in ticks.
fn ticks_in(stat: &str) -> Option<u64> {
    // The name, in brackets, may hold anything; the state behind it is field 3, the times are 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_behind_whatever_the_name_is() {
        let line = "77 (a) b (c) S 1 77 77 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 1234 0 0";
        assert_eq!(ticks_in(line), Some(300));
        assert_eq!(ticks_in("77 (a) S 1"), None);
    }

    #[test]
    fn working_takes_time() {
        // A kernel without these statistics says so every time.
        let Some(before) = of_this_thread() else { return };
        while of_this_thread().expect("it was there before") == before {}
        assert!(of_process(std::process::id()).is_some());
    }
}
