//! What a client process and the run say to each other: lines, each short enough that a pipe takes it whole.
//!
//! A line that was written survives the SIGKILL of its writer, and one that was not is missing whole.

use std::fmt;
use std::str::FromStr;

use seriatim_core::{CommitNumber, WritePointer};

/// From a client, on its standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// It received this write pointer.
    Began(WritePointer),
    /// Its transfer was acknowledged as committed.
    Acknowledged { sequence: u64, tx: WritePointer, csn: CommitNumber },
    /// A commit's answer was lost, and the outcome was learned by asking.
    Settled,
    /// What became of a transfer could not be learned.
    Unknown { sequence: u64 },
    /// As ordered, it stands between the two writes of a transfer and does nothing more.
    Halted(WritePointer),
    /// What a transaction read and means to write: a row of the run's history, its outcome unknown.
    Opened(String),
    /// How the transaction that was opened last has ended: its row.
    Closed(String),
    /// It cannot go on.
    Failed(String),
}

/// To a client, on its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Stand still between the two writes of the next transfer.
    Halt,
    /// End after the transfer under way.
    Quit,
}

/// How much of an error is told: a pipe takes 4096 bytes at once, and a character has four at most.
const WHY_CHARS_MAX: usize = 1000;

/// A line that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message: {0:?}")]
pub struct NoMessage(pub String);

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Began(tx) => write!(f, "began {tx}"),
            Message::Acknowledged { sequence, tx, csn } => write!(f, "acknowledged {sequence} {tx} {csn}"),
            Message::Settled => f.write_str("settled"),
            Message::Unknown { sequence } => write!(f, "unknown {sequence}"),
            Message::Halted(tx) => write!(f, "halted {tx}"),
            Message::Opened(row) => write!(f, "opened {row}"),
            Message::Closed(row) => write!(f, "closed {row}"),
            Message::Failed(why) => {
                let why: String = why.replace(['\n', '\r'], " ").chars().take(WHY_CHARS_MAX).collect();
                write!(f, "failed {why}")
            }
        }
    }
}

impl FromStr for Message {
    type Err = NoMessage;

    fn from_str(line: &str) -> Result<Message, NoMessage> {
        let no_message = || NoMessage(line.to_string());
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers: Option<Vec<u64>> = rest.split_terminator(' ').map(|number| number.parse().ok()).collect();
        match (word, numbers.as_deref()) {
            ("began", Some([tx])) => Ok(Message::Began(WritePointer(*tx))),
            ("acknowledged", Some([sequence, tx, csn])) => {
                Ok(Message::Acknowledged { sequence: *sequence, tx: WritePointer(*tx), csn: CommitNumber(*csn) })
            }
            ("settled", Some([])) => Ok(Message::Settled),
            ("unknown", Some([sequence])) => Ok(Message::Unknown { sequence: *sequence }),
            ("halted", Some([tx])) => Ok(Message::Halted(WritePointer(*tx))),
            ("opened", _) => Ok(Message::Opened(rest.to_string())),
            ("closed", _) => Ok(Message::Closed(rest.to_string())),
            ("failed", _) => Ok(Message::Failed(rest.to_string())),
            _ => Err(no_message()),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Halt => "halt",
            Order::Quit => "quit",
        })
    }
}

impl FromStr for Order {
    type Err = NoMessage;

    fn from_str(line: &str) -> Result<Order, NoMessage> {
        match line {
            "halt" => Ok(Order::Halt),
            "quit" => Ok(Order::Quit),
            _ => Err(NoMessage(line.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_orders_come_back() {
        let tx = WritePointer(u64::MAX);
        let messages = [
            Message::Began(tx),
            Message::Acknowledged { sequence: 0, tx, csn: CommitNumber(3) },
            Message::Settled,
            Message::Unknown { sequence: 9 },
            Message::Halted(tx),
            Message::Opened("{\"tx\":1}".into()),
            Message::Closed("{\"tx\":1}".into()),
            Message::Failed("the disk is on fire".into()),
        ];
        for message in messages {
            let line = message.to_string();
            assert!(!line.contains('\n') && line.len() < 512, "{line}");
            assert_eq!(line.parse(), Ok(message));
        }
        for order in [Order::Halt, Order::Quit] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for line in ["", "began", "began x", "began 1 2", "acknowledged 1 2", "settled 1", "what 1"] {
            assert_eq!(line.parse::<Message>(), Err(NoMessage(line.into())));
        }
    }
}
