//! Who depends on whom, and the knots in that.
//!
//! An edge says that one transaction comes before another in every order that explains the history: it wrote the version
//! that the other overwrote, or read; or it read the version that the other overwrote.

use std::ops::Range;

use crate::history::History;
use crate::versions::{Source, Versions};

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The other overwrote its version (ww).
    Overwritten,
    /// The other read its version (wr).
    Read,
    /// It read the version that the other overwrote, so it missed the other (rw).
    Missed,
}

/// An edge, without its origin.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    pub to: u32,
    pub key: u32,
    pub cause: Cause,
}

/// All edges, by origin.
pub struct Graph {
    starts: Vec<usize>,
    edges: Vec<Edge>,
}

/// A transaction and how it was reached: what a step may do depends on the step before. See [`Rule`].
pub type Node = u32;

/// Which walks are looked at. A knot is a set of transactions that reach each other by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Every step.
    All,
    /// Overwrites alone.
    Overwrites,
    /// Overwrites and reads.
    Flow,
    /// Every step, but no two in a row that missed: such cycles snapshot isolation rules out.
    NoTwoMissed,
}

impl Rule {
    /// The node that a step leads to, if the rule allows it.
    pub fn step(self, from: Node, edge: &Edge) -> Option<Node> {
        let has_missed = from % 2 == 1;
        let misses = edge.cause == Cause::Missed;
        let allowed = match self {
            Rule::All => true,
            Rule::Overwrites => edge.cause == Cause::Overwritten,
            Rule::Flow => !misses,
            Rule::NoTwoMissed => !(has_missed && misses),
        };
        allowed.then_some(edge.to * 2 + u32::from(misses && self == Rule::NoTwoMissed))
    }
}

/// The node of a transaction at the start of a walk.
pub fn node(tx: u32) -> Node {
    tx * 2
}

/// The transaction of a node.
pub fn transaction(node: Node) -> u32 {
    node / 2
}

impl Graph {
    /// The graph of all transactions that count.
    pub fn new(history: &History, versions: &Versions) -> Graph {
        let mut starts = vec![0; history.len() + 1];
        each_edge(history, versions, |from, _| starts[from as usize + 1] += 1);
        for tx in 1..starts.len() {
            starts[tx] += starts[tx - 1];
        }
        let mut next = starts.clone();
        let nothing = Edge { to: 0, key: 0, cause: Cause::Read };
        let mut edges = vec![nothing; starts[history.len()]];
        each_edge(history, versions, |from, edge| {
            edges[next[from as usize]] = edge;
            next[from as usize] += 1;
        });
        Graph { starts, edges }
    }

    /// The edges that leave a transaction.
    pub fn edges(&self, tx: u32) -> &[Edge] {
        &self.edges[self.range(tx)]
    }

    fn range(&self, tx: u32) -> Range<usize> {
        self.starts[tx as usize]..self.starts[tx as usize + 1]
    }

    /// The knots of more than one node among those transactions that `groups` gives one number: no walk leaves a group,
    /// and 0 is no group. Each knot lists its nodes.
    ///
    /// Tarjan's algorithm, with a stack of its own instead of recursion; linear.
    pub fn knots(&self, rule: Rule, groups: &[u32]) -> Vec<Vec<Node>> {
        let mut search = Search {
            graph: self,
            rule,
            groups,
            found: vec![0; groups.len() * 2],
            lowest: vec![0; groups.len() * 2],
            count: 0,
            open: Vec::new(),
            knots: Vec::new(),
        };
        for (tx, group) in (0..).zip(groups) {
            if *group != 0 && search.found[node(tx) as usize] == 0 {
                search.from(node(tx));
            }
        }
        search.knots
    }
}

fn each_edge(history: &History, versions: &Versions, mut add: impl FnMut(u32, Edge)) {
    for key in 0..history.keys() as u32 {
        for pair in versions.of(key).windows(2) {
            add(pair[0], Edge { to: pair[1], key, cause: Cause::Overwritten });
        }
    }
    for told in history.overwrites().iter().filter(|told| versions.counts(told.by)) {
        let before = history.with_pointer(told.pointer).filter(|before| versions.position(told.key, *before).is_some());
        if let Some(before) = before.filter(|before| *before != told.by) {
            add(before, Edge { to: told.by, key: told.key, cause: Cause::Overwritten });
        }
    }
    for (reader, tx) in history.transactions().filter(|(number, _)| versions.counts(*number)) {
        let range = history.read_range(reader);
        for (read, source) in history.reads()[range.clone()].iter().zip(versions.sources(range)) {
            let key = read.key;
            let of_key = versions.of(key);
            let after = match *source {
                Source::Own | Source::Unwritten => continue,
                Source::Writer(writer) => {
                    // A writer that did not commit is an anomaly of its own.
                    let Some(position) = versions.position(key, writer) else { continue };
                    add(writer, Edge { to: reader, key, cause: Cause::Read });
                    position + 1
                }
                Source::Nothing => match versions.before_nothing(history, key, tx.snapshot.csn) {
                    Some(after) => after,
                    None => continue,
                },
            };
            if let Some(next) = of_key.get(after).filter(|next| **next != reader) {
                add(reader, Edge { to: *next, key, cause: Cause::Missed });
            }
        }
    }
}

/// The state of Tarjan's algorithm.
struct Search<'a> {
    graph: &'a Graph,
    rule: Rule,
    groups: &'a [u32],
    /// In which order nodes were found, from 1; 0 if not yet.
    found: Vec<u32>,
    /// The earliest open node that is reached from here; 0 once the node's knot is complete.
    lowest: Vec<u32>,
    count: u32,
    /// Nodes whose knot is not complete.
    open: Vec<Node>,
    knots: Vec<Vec<Node>>,
}

impl Search<'_> {
    fn enter(&mut self, node: Node, path: &mut Vec<(Node, usize)>) {
        self.count += 1;
        self.found[node as usize] = self.count;
        self.lowest[node as usize] = self.count;
        self.open.push(node);
        path.push((node, 0));
    }

    fn from(&mut self, root: Node) {
        let mut path = Vec::new();
        self.enter(root, &mut path);
        while let Some((node, tried)) = path.last_mut() {
            let node = *node;
            let tx = transaction(node);
            if let Some(edge) = self.graph.edges(tx).get(*tried) {
                *tried += 1;
                if self.groups[edge.to as usize] != self.groups[tx as usize] {
                    continue;
                }
                let Some(next) = self.rule.step(node, edge) else { continue };
                if self.found[next as usize] == 0 {
                    self.enter(next, &mut path);
                } else if self.lowest[next as usize] != 0 {
                    self.lowest[node as usize] = self.lowest[node as usize].min(self.found[next as usize]);
                }
            } else {
                path.pop();
                if let Some((parent, _)) = path.last() {
                    self.lowest[*parent as usize] = self.lowest[*parent as usize].min(self.lowest[node as usize]);
                }
                if self.lowest[node as usize] == self.found[node as usize] {
                    self.close(node);
                }
            }
        }
    }

    /// The knot of which `first` was found first is complete.
    fn close(&mut self, first: Node) {
        let start =
            self.open.iter().rposition(|node| *node == first).expect("a node is open until its knot is complete");
        for node in &self.open[start..] {
            self.lowest[*node as usize] = 0;
        }
        if self.open.len() - start > 1 {
            self.knots.push(self.open.split_off(start));
        } else {
            self.open.truncate(start);
        }
    }
}
