//! Cycles of dependencies, by what they rule out.
//!
//! | cycle | kind |
//! |---|---|
//! | overwrites alone | write-cycle |
//! | overwrites and reads | circular-flow |
//! | one step that missed | read-skew, or lost-update if all is about one key |
//! | several, no two in a row | long-fork |
//! | two or more in a row | write-skew: allowed, unless all members are serializable |
//!
//! The first four are what snapshot isolation rules out, and the last one what it allows: whoever misses another ran
//! beside it, and of two that follow each other so, the first began before the last committed.
//!
//! Knots are found in linear time; a cycle in a knot is found by breadth-first search, a bounded number of times. So
//! whether there are cycles of a kind is exact but for kinds that hide behind others in one large knot, and how many
//! is a lower bound.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::anomaly::Kind;
use crate::findings::{Findings, member};
use crate::graph::{Cause, Edge, Graph, Node, Rule, transaction};
use crate::history::History;
use crate::row::Isolation;
use crate::versions::{Source, Versions};

/// Cycles looked for in one knot.
const SEARCHES_MAX: usize = 64;

/// A cycle: each step with its origin.
type Cycle = Vec<(u32, Edge)>;

/// Finds what cycles there are. Answers the number of knots that are tied by allowed write skew alone.
pub fn judge(history: &History, versions: &Versions, findings: &mut Findings<'_>) -> u64 {
    lost_updates(history, versions, findings);
    let graph = Graph::new(history, versions);
    let everyone: Vec<u32> = history.transactions().map(|(number, _)| u32::from(versions.counts(number))).collect();
    let all = graph.knots(Rule::All, &everyone);
    if all.is_empty() {
        return 0;
    }
    // Every cycle lies within one of these.
    let mut groups = vec![0; history.len()];
    for (group, knot) in (1..).zip(&all) {
        knot.iter().for_each(|node| groups[transaction(*node) as usize] = group);
    }
    let mut tied = FxHashSet::default();
    let mut cycles = Cycles { history, graph: &graph, groups: &groups, findings, tied: &mut tied };
    cycles.one_per_knot(Kind::WriteCycle, Rule::Overwrites, Cause::Overwritten);
    cycles.one_per_knot(Kind::CircularFlow, Rule::Flow, Cause::Read);
    cycles.skews();
    let serializable: Vec<u32> = (0..)
        .zip(&groups)
        .map(|(tx, group)| if history.transaction(tx).isolation == Isolation::Serializable { *group } else { 0 })
        .collect();
    Cycles { groups: &serializable, ..cycles }.write_skews();
    (all.len() - tied.len()) as u64
}

/// Whoever reads a key and writes it must overwrite what it read. Every such update that does not is found here.
fn lost_updates(history: &History, versions: &Versions, findings: &mut Findings<'_>) {
    for (number, tx) in history.transactions().filter(|(number, _)| versions.counts(*number)) {
        let range = history.read_range(number);
        for (read, source) in history.reads()[range.clone()].iter().zip(versions.sources(range)) {
            let Some(ours) =
                versions.position(read.key, number).filter(|_| history.write_of(number, read.key).is_some())
            else {
                continue;
            };
            let of_key = versions.of(read.key);
            let after = match *source {
                Source::Writer(writer) => versions.position(read.key, writer).map(|position| position + 1),
                Source::Nothing => versions.before_nothing(history, read.key, tx.snapshot.csn),
                _ => None,
            };
            let Some(lost) = after.filter(|after| *after < ours).map(|after| of_key[after]) else { continue };
            findings.add(Kind::LostUpdate, &[number, lost], &[read.key], || {
                let (tx, lost) = (member(history, number), member(history, lost));
                format!("{tx} read {0:?}, missed that {lost} overwrote it, and overwrote {lost}", history.key(read.key))
            });
        }
    }
}

struct Cycles<'a, 'f> {
    history: &'a History,
    graph: &'a Graph,
    groups: &'a [u32],
    findings: &'a mut Findings<'f>,
    /// Groups in which an anomaly was found.
    tied: &'a mut FxHashSet<u32>,
}

impl Cycles<'_, '_> {
    /// Reports the shortest cycle found in each knot that has a step of `cause`.
    fn one_per_knot(&mut self, kind: Kind, rule: Rule, cause: Cause) {
        for knot in self.graph.knots(rule, self.groups) {
            if let Some(cycle) = self.cycles_in(&knot, rule, cause).into_iter().min_by_key(Vec::len) {
                self.report(kind, &cycle);
            }
        }
    }

    /// Cycles with steps that missed, but no two in a row.
    fn skews(&mut self) {
        for knot in self.graph.knots(Rule::NoTwoMissed, self.groups) {
            for cycle in self.cycles_in(&knot, Rule::NoTwoMissed, Cause::Missed) {
                let missed = cycle.iter().filter(|(_, edge)| edge.cause == Cause::Missed).count();
                let key = cycle[0].1.key;
                if cycle.iter().all(|(_, edge)| edge.key == key && edge.cause != Cause::Read) && missed == 1 {
                    // A lost update, and already found as such.
                    self.tied.insert(self.groups[cycle[0].0 as usize]);
                } else {
                    self.report(if missed == 1 { Kind::ReadSkew } else { Kind::LongFork }, &cycle);
                }
            }
        }
    }

    /// Cycles with two steps in a row that missed, among those whose groups are given.
    fn write_skews(&mut self) {
        for knot in self.graph.knots(Rule::All, self.groups) {
            let misses = |(_, edge): &(u32, Edge)| edge.cause == Cause::Missed;
            let in_a_row =
                |cycle: &Cycle| (0..cycle.len()).any(|at| misses(&cycle[at]) && misses(&cycle[(at + 1) % cycle.len()]));
            let cycles = self.cycles_in(&knot, Rule::All, Cause::Missed);
            for cycle in cycles.into_iter().filter(in_a_row) {
                self.report(Kind::WriteSkew, &cycle);
            }
        }
    }

    /// Shortest cycles of a knot through steps of `cause`, each set of members once.
    fn cycles_in(&self, knot: &[Node], rule: Rule, cause: Cause) -> Vec<Cycle> {
        let within: FxHashSet<Node> = knot.iter().copied().collect();
        let steps = knot.iter().flat_map(|from| {
            let edges = self.graph.edges(transaction(*from)).iter().filter(move |edge| edge.cause == cause);
            edges.filter_map(|edge| Some((*from, *edge, rule.step(*from, edge)?)))
        });
        let steps = steps.filter(|(_, _, to)| within.contains(to)).take(SEARCHES_MAX);
        let mut seen = FxHashSet::default();
        let mut cycles = Vec::new();
        for (from, edge, to) in steps {
            let Some(mut cycle) = self.path(to, from, rule, &within) else { continue };
            cycle.insert(0, (transaction(from), edge));
            let mut members: Vec<u32> = cycle.iter().map(|(tx, _)| *tx).collect();
            members.sort_unstable();
            if seen.insert(members) {
                cycles.push(cycle);
            }
        }
        cycles
    }

    /// The shortest way from one node to another within a knot.
    fn path(&self, from: Node, to: Node, rule: Rule, within: &FxHashSet<Node>) -> Option<Cycle> {
        let mut came: FxHashMap<Node, (Node, Edge)> = FxHashMap::default();
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            if at == to {
                let mut path = Vec::new();
                let mut at = at;
                while at != from {
                    let (before, edge) = came[&at];
                    path.push((transaction(before), edge));
                    at = before;
                }
                path.reverse();
                return Some(path);
            }
            for edge in self.graph.edges(transaction(at)) {
                let Some(next) = rule.step(at, edge).filter(|next| *next != from && within.contains(next)) else {
                    continue;
                };
                came.entry(next).or_insert_with(|| {
                    queue.push_back(next);
                    (at, *edge)
                });
            }
        }
        None
    }

    fn report(&mut self, kind: Kind, cycle: &Cycle) {
        self.tied.insert(self.groups[cycle[0].0 as usize]);
        let members: Vec<u32> = cycle.iter().map(|(tx, _)| *tx).collect();
        let keys: Vec<u32> = cycle.iter().map(|(_, edge)| edge.key).collect();
        let history = self.history;
        self.findings.add(kind, &members, &keys, || {
            let steps = cycle.iter().map(|(from, edge)| {
                let (from, to) = (member(history, *from), member(history, edge.to));
                let key = history.key(edge.key);
                match edge.cause {
                    Cause::Overwritten => format!("{to} overwrote {key:?} of {from}"),
                    Cause::Read => format!("{to} read {key:?} of {from}"),
                    Cause::Missed => format!("{from} read {key:?} and missed that {to} overwrote it"),
                }
            });
            steps.collect::<Vec<_>>().join("; ")
        });
    }
}
