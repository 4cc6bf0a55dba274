//! Child processes that do not outlive their parent, however it ends.
//!
//! A parent that returns or panics kills its children by dropping them. One that is killed itself cannot, so every child
//! asks the kernel for a SIGKILL when its parent dies. It does so between fork and exec, in a step that is a program
//! of its own: `seriatim check child` asks, and then becomes what it was told to be.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Becomes another subcommand that dies with its parent; for the checks' own use.
#[derive(Clone, Debug, clap::Args)]
pub struct ChildArgs {
    /// Process id of the parent.
    #[arg(long)]
    parent: i32,
    /// The subcommand and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// Asks for the signal and becomes the command.
///
/// # Errors
/// If it cannot; it does not return otherwise.
pub fn become_child(args: &ChildArgs) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // The parent may have died before the kernel knew that this is of interest.
    if getppid() != Pid::from_raw(args.parent) {
        return io::Error::other("the parent is gone");
    }
    match std::env::current_exe() {
        Ok(exe) => Command::new(exe).args(&args.command).exec(),
        Err(error) => error,
    }
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct Owned(Child);

impl Owned {
    /// Starts this program again, as the subcommand that `arguments` say.
    ///
    /// Must be called on a thread that lives as long as the children should: the kernel takes the death of the thread
    /// that started a child for that of the parent.
    ///
    /// # Errors
    /// If no process can be made.
    pub fn start<A: AsRef<str>>(
        arguments: impl IntoIterator<Item = A>,
        set_up: impl FnOnce(&mut Command) -> &mut Command,
    ) -> io::Result<Owned> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["check", "child", "--parent", &getpid().as_raw_nonzero().to_string(), "--"]);
        command.args(arguments.into_iter().map(|argument| argument.as_ref().to_string()));
        // In a process group of its own, so that Ctrl-C at the terminal reaches the parent alone.
        command.stdin(Stdio::null()).process_group(0);
        set_up(&mut command).spawn().map(Owned)
    }

    /// The process, for its pipes.
    pub fn pipes(&mut self) -> &mut Child {
        &mut self.0
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Sends SIGKILL and does not wait. Nothing happens if it has ended.
    pub fn strike(&mut self) {
        // The only error is that it has ended and was waited for.
        let _ = self.0.kill();
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.strike();
        let _ = self.0.wait();
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill();
    }
}
