//! How much processor time a thread, or another process of this machine, has used.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time that the calling thread has used so far.
pub(crate) fn of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Processor time that a process has used so far, all its threads together, in steps of 10 ms. `None` if it is gone.
pub(crate) fn of_process(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ticks_in(&stat)?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
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
        let before = of_this_thread();
        let mut sum = 0u64;
        while of_this_thread() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(of_process(std::process::id()).is_some());
    }
}
