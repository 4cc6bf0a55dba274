//! Runs seeds.
fn main() {
    let mut args = std::env::args().skip(1);
    let first: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let count: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let trace = args.next().is_some();
    let started = std::time::Instant::now();
    let mut probes = seriatim_sim::Probes::default();
    let (mut events, mut commits, mut ms) = (0, 0, 0);
    for seed in first..first + count {
        let outcome = seriatim_sim::run(seed, &seriatim_sim::RunOptions { trace, ..Default::default() });
        probes.join(&outcome.probes);
        events += outcome.events;
        commits += outcome.commits;
        ms += outcome.virtual_ms;
        if let Some(v) = outcome.violation {
            outcome.last_lines.iter().for_each(|l| println!("{l}"));
            println!("seed {seed}: {v}");
            break;
        }
    }
    print!("{probes}");
    println!("{events} events, {commits} commits, {ms} ms virtual, {:?}", started.elapsed());
}
