//! What [`Event::Memory`](crate::Event::Memory) counts, in words for people.

/// `3.0 MiB: parameters 1.0 MiB, optimizer 2.0 MiB; sent 512 B`: all kinds together, each kind, and what was sent, in bytes.
pub fn memory_line(kinds: &[(&str, u64)], sent: u64) -> String {
    let total = kinds.iter().map(|(_, bytes)| bytes).sum();
    let kinds: Vec<String> = kinds.iter().map(|(kind, bytes)| format!("{kind} {}", shown(*bytes))).collect();
    format!("{}: {}; sent {}", shown(total), kinds.join(", "), shown(sent))
}

/// In the largest unit of which there is one.
fn shown(bytes: u64) -> String {
    let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(power, _)| bytes >> power > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(power, unit)| format!("{:.1} {unit}", bytes as f64 / f64::from(1 << power)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_bytes_in_the_largest_unit() {
        assert_eq!([0, 1023, 1536, 5 << 20, 3 << 29].map(shown), ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "1.5 GiB"]);
    }
}
