//! Where a panic belongs: in the innermost call of the user's own code, if libtorch, its binding, the runtime or the standard library has
//! panicked for it.
//!
//! tch panics in code that a program generated, thousands of lines away from the call that was wrong. A backtrace contains the call's
//! line if the program has line tables, which the course's profile generates.

use std::backtrace::Backtrace;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};

use crate::error_file::{panic_text, without_frames};

/// Parts of the paths of code that the user did not write: the standard library's, and packages' from a registry or a repository.
const INSTALLED: [&str; 4] = ["/rustc/", "/registry/src/", "/git/checkouts/", "/lib/rustlib/"];
/// The checkout, if this crate is compiled in one, and its folders of crates that are not the user's.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const RUNTIME: [&str; 2] = ["crates", "engine"];

/// Where a panic belongs, for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PanicPlace {
    /// `file:line:column`.
    pub place: String,
    /// The text of that line, if the file can be read.
    pub source_line: Option<String>,
    /// The calls between that line and the panic, if the panic is in other code.
    pub within: Option<Within>,
}

/// Calls from the user's code into other code, in which there is a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Within {
    /// The user's function.
    pub function: String,
    /// Where the panic itself is.
    pub panic: String,
    /// The number of calls in between, and their crates.
    pub calls: usize,
    pub crates: BTreeSet<String>,
}

/// The place of the panic that a hook is called for, on this thread. `None` if the panic has no place.
pub fn of(info: &PanicHookInfo<'_>) -> Option<PanicPlace> {
    let location = info.location()?;
    let panic = location.to_string();
    let at_panic = || PanicPlace { source_line: line_of(&panic), place: panic.clone(), within: None };
    if is_own(Path::new(location.file())) {
        return Some(at_panic());
    }
    let calls = Backtrace::force_capture().to_string();
    Some(innermost(&calls, &panic, &is_own).unwrap_or_else(at_panic))
}

/// The innermost place of a backtrace, in the form of [`Backtrace`]'s `Display`, in a file that is the user's own.
pub fn innermost(backtrace: &str, panic: &str, is_own: &dyn Fn(&Path) -> bool) -> Option<PanicPlace> {
    let (mut function, mut calls, mut crates) = ("", 0, BTreeSet::new());
    for line in backtrace.lines().map(str::trim) {
        match line.strip_prefix("at ") {
            Some(place) if !function.is_empty() && is_own(&absolute(file_of(place))) => {
                let place = place.strip_prefix("./").unwrap_or(place).to_owned();
                // An inlined closure has no other name.
                let function = if function.starts_with("{closure") { "a closure" } else { without_hash(function) };
                let within = Within { function: function.to_owned(), panic: panic.to_owned(), calls, crates };
                return Some(PanicPlace { source_line: line_of(&place), place, within: Some(within) });
            }
            Some(_) => {}
            None => {
                calls += usize::from(!function.is_empty());
                crates.extend(crate_of(function));
                if is_of_the_panic(function) {
                    (calls, crates) = (0, BTreeSet::new());
                }
                function = line.split_once(": ").map_or(line, |(_, name)| name);
            }
        }
    }
    None
}

/// Returns true for the last calls of the panic itself: the hook, which asks for the backtrace, is among those that come before.
fn is_of_the_panic(function: &str) -> bool {
    function.contains("rust_begin_unwind") || function.contains("__rust_end_short_backtrace")
}

/// The calls of a backtrace, in the form of [`Backtrace`]'s `Display`, that the standard library prints of a panic: those from `main` or the
/// thread's function to the panic or the error. All of them with `RUST_BACKTRACE=full`.
#[must_use]
pub fn short(backtrace: &str) -> String {
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|asked| asked == "full") {
        return backtrace.to_owned();
    }
    within_main(backtrace)
}

fn within_main(backtrace: &str) -> String {
    let mut lines: Vec<&str> =
        backtrace.lines().take_while(|line| !line.contains("__rust_begin_short_backtrace")).collect();
    if let Some(panic) = lines.iter().position(|line| line.contains("__rust_end_short_backtrace")) {
        // The place of a call, if it is known, has a line of its own.
        let place = lines.get(panic + 1).is_some_and(|line| line.trim_start().starts_with("at "));
        lines.drain(..=panic + usize::from(place));
    }
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

/// Returns true if the file belongs neither to the standard library, to an installed package nor to the runtime.
pub fn is_own(file: &Path) -> bool {
    let text = file.to_string_lossy();
    if INSTALLED.iter().any(|part| text.contains(part)) {
        return false;
    }
    let checkout = Path::new(CHECKOUT).canonicalize().unwrap_or_else(|_| PathBuf::from(CHECKOUT));
    if file.is_absolute() {
        let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        return !RUNTIME.iter().any(|folder| file.starts_with(checkout.join(folder)));
    }
    // The compiler writes paths in the checkout relative to the checkout's folder.
    !(RUNTIME.iter().any(|folder| file.starts_with(folder)) && checkout.join(file).is_file())
}

/// What a panic says, without the frames of libtorch's C++. A panic of tch has libtorch's message in its debug form.
#[must_use]
pub fn message(text: &str) -> String {
    let kept = without_frames(text);
    match kept.split_once("Torch(\"") {
        Some((_, message)) if kept.len() < text.len() => {
            format!("libtorch: {}", message.replace("\\n", "\n").replace("\\\"", "\""))
        }
        _ => kept.to_owned(),
    }
}

impl PanicPlace {
    /// What is printed for a panic in other code; the first lines are as the standard library prints them. `trace` is empty if none was
    /// asked for.
    pub fn text(&self, info: &PanicHookInfo<'_>, trace: &str) -> String {
        let said =
            panic_text(info.payload()).map_or_else(|| "a panic whose payload is not a string".to_owned(), message);
        let thread = std::thread::current();
        let mut text =
            format!("\nthread '{}' panicked at {}:\n{said}\n", thread.name().unwrap_or("<unnamed>"), self.place);
        let number = self.place.rsplit(':').nth(1).unwrap_or_default();
        if let Some(line) = &self.source_line {
            let _ = writeln!(text, "  {number} | {line}");
        }
        if let Some(Within { function, panic, calls, crates }) = &self.within {
            let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
            let advice = if trace.is_empty() { "; RUST_BACKTRACE=1 prints the calls" } else { "" };
            let _ = writeln!(text, "  in {function}, through {calls} calls in {}", crates.join(", "));
            let _ = writeln!(text, "  the panic itself is at {panic}{advice}");
        }
        text + trace
    }
}

/// The line of a file, without its indentation.
fn line_of(place: &str) -> Option<String> {
    let number: usize = place.rsplit(':').nth(1)?.parse().ok()?;
    let text = fs::read_to_string(file_of(place)).ok()?;
    Some(text.lines().nth(number.checked_sub(1)?)?.trim().to_owned())
}

/// `src/main.rs` of `src/main.rs:3:5`.
fn file_of(place: &str) -> &Path {
    let file = place.rsplitn(3, ':').nth(2).unwrap_or(place);
    Path::new(file)
}

/// Backtraces write paths below the working folder relative to that folder.
fn absolute(file: &Path) -> PathBuf {
    match (file.strip_prefix("./"), std::env::current_dir()) {
        (Ok(rest), Ok(folder)) => folder.join(rest),
        _ => file.to_owned(),
    }
}

/// `tch` of `tch::wrappers::tensor::f` and of `<tch::Tensor as core::ops::Add>::add`.
fn crate_of(function: &str) -> Option<String> {
    let (name, _) = function.trim_start_matches(['<', '&']).split_once("::")?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| name.to_owned()).filter(|name| !["std", "core", "alloc"].contains(&&**name))
}

/// Without the `::h0123456789abcdef` of a symbol.
fn without_hash(function: &str) -> &str {
    match function.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => function,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: &str = "   0: std::panicking::begin_panic_handler\n             at /rustc/abc/library/std/src/panicking.rs:698:5\n   \
                         1: tch::wrappers::tensor_generated::<impl tch::Tensor>::cross_entropy_loss::h0123456789abcdef\n   \
                         2: lockstep::loss::CrossEntropy::loss\n             at /c/crates/lockstep/src/loss.rs:12:9\n   \
                         3: mine::train::h0123456789abcdef\n             at /home/ada/mine/src/main.rs:84:20\n   \
                         4: mine::main\n             at /home/ada/mine/src/main.rs:50:5\n";

    #[test]
    fn names_the_innermost_line_of_the_user_and_folds_the_rest() {
        let own = |file: &Path| file.starts_with("/home/ada");
        let found = innermost(CALLS, "/r/tch/src/generated.rs:9:1", &own).unwrap();
        let within = found.within.unwrap();
        assert_eq!(
            (found.place.as_str(), within.function.as_str()),
            ("/home/ada/mine/src/main.rs:84:20", "mine::train")
        );
        assert_eq!(within.calls, 3);
        assert_eq!(within.crates.into_iter().collect::<Vec<_>>(), ["lockstep", "tch"]);
        assert_eq!(innermost(CALLS, "", &|_| false), None);
        for (end, _) in CALLS.char_indices() {
            innermost(&CALLS[..end], "", &own);
        }
    }

    /// As in a hook.
    const WHOLE: &str = "   0: lockstep_contract::error_file::report_panics::{{closure}}\n   \
                         1: std::sys::backtrace::__rust_end_short_backtrace::<f, !>\n             at /rustc/abc/library/std/src/sys/backtrace.rs:182:18\n   \
                         2: __rustc::rust_begin_unwind\n   \
                         3: core::result::unwrap_failed\n   \
                         4: tch::wrappers::tensor_generated::<impl tch::Tensor>::embedding\n   \
                         5: {closure#0}\n             at /home/ada/mine/src/main.rs:84:20\n   \
                         6: __rust_begin_short_backtrace<fn() -> std::process::ExitCode, std::process::ExitCode>\n   \
                         7: main\n";

    #[test]
    fn counts_no_calls_of_the_panic_itself() {
        let within = innermost(WHOLE, "", &|file| file.starts_with("/home/ada")).unwrap().within.unwrap();
        assert_eq!((within.function.as_str(), within.calls), ("a closure", 2));
        assert_eq!(within.crates.into_iter().collect::<Vec<_>>(), ["tch"]);
    }

    #[test]
    fn shortens_a_backtrace_to_the_calls_between_main_and_the_panic() {
        let (begin, end) = (WHOLE.find("   2: ").unwrap(), WHOLE.find("   6: ").unwrap());
        assert_eq!(within_main(WHOLE), WHOLE[begin..end]);
        assert_eq!(within_main(CALLS), CALLS, "neither end is in it");
        for (end, _) in WHOLE.char_indices() {
            within_main(&WHOLE[..end]);
        }
    }

    #[test]
    fn knows_whose_a_file_is() {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src/panic_place.rs");
        for (file, expected) in [
            ("src/main.rs", true),
            ("labs/01-one/src/main.rs", true),
            ("/home/ada/crates/mine/src/lib.rs", true),
            ("crates/mine/src/lib.rs", true),
            ("engine/contract/src/panic_place.rs", false),
            (own, false),
            ("/rustc/abc/library/core/src/result.rs", false),
            ("/home/ada/.cargo/registry/src/index-1/tch-0.24.0/src/lib.rs", false),
        ] {
            assert_eq!(is_own(Path::new(file)), expected, "{file}");
        }
    }

    #[test]
    fn reads_the_line_and_survives_places_of_other_forms() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a:b.rs");
        fs::write(&file, "one\n    two();\n").unwrap();
        assert_eq!(line_of(&format!("{}:2:5", file.display())).as_deref(), Some("two();"));
        for place in ["", ":", "::", "x:0:1", "x:9", "/none:1:1"] {
            assert_eq!(line_of(place), None, "{place}");
        }
        assert_eq!(line_of(&format!("{}:0:5", file.display())), None);
    }

    #[test]
    fn says_what_libtorch_said() {
        let text = "called `Result::unwrap()` on an `Err` value: Torch(\"size \\\"3\\\"\\nException raised from f at x.cpp:1\\nframe\")";
        assert_eq!(message(text), "libtorch: size \"3\"");
        assert_eq!(message("other"), "other");
    }
}
