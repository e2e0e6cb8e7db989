//! The cost of the two algorithms by the α–β model: the number of consecutive messages, and the volume in units of the tensor.
//!
//! Ignores γ, the time for adding, which is small compared with copying on one machine. Source: R. Thakur et al. 2005, see
//! `doubling`.

use lockstep::measure::AlphaBeta;

use crate::doubling::core;

/// An algorithm's cost for a tensor of n bytes: `messages`·α + `volume`·n·β.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// Messages that must wait for each other.
    pub(crate) messages: f64,
    /// Bytes in them, in units of the whole tensor.
    pub(crate) volume: f64,
}

// ANCHOR: cost
impl Cost {
    /// 2(p − 1) messages of n/p bytes.
    pub(crate) fn of_ring(size: usize) -> Self {
        let messages = 2.0 * (size - 1) as f64;
        Cost { messages, volume: messages / size as f64 }
    }

    /// log2(p) messages of n bytes; if p is not a power of two, one more into the core and one out of it.
    pub(crate) fn of_doubling(size: usize) -> Self {
        let rounds = core(size).ilog2() + if core(size) == size { 0 } else { 2 };
        Cost { messages: rounds.into(), volume: rounds.into() }
    }

    /// α and β of one message, from the line through an algorithm's times.
    pub(crate) fn link(&self, fitted: AlphaBeta) -> AlphaBeta {
        AlphaBeta { alpha: fitted.alpha / self.messages, beta: fitted.beta / self.volume }
    }
}

/// The tensor size in bytes at which two lines cross, if they do.
pub(crate) fn crossing(one: AlphaBeta, other: AlphaBeta) -> Option<f64> {
    let bytes = (one.alpha - other.alpha) / (other.beta - one.beta);
    (bytes.is_finite() && bytes > 0.0).then_some(bytes)
}
// ANCHOR_END: cost

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_messages_and_bytes_of_both_algorithms() {
        let pair = |cost: Cost| (cost.messages, cost.volume);
        assert_eq!([2, 4, 8].map(|p| pair(Cost::of_ring(p))), [(2.0, 1.0), (6.0, 1.5), (14.0, 1.75)]);
        assert_eq!([2, 4, 8].map(|p| pair(Cost::of_doubling(p))), [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]);
        assert_eq!([3, 5].map(|p| pair(Cost::of_doubling(p))), [(3.0, 3.0), (4.0, 4.0)]);
    }

    #[test]
    fn both_lines_lead_back_to_the_link_they_were_made_of() {
        let link = AlphaBeta { alpha: 25.0, beta: 0.002 };
        for cost in [Cost::of_ring(6), Cost::of_doubling(6)] {
            let line = AlphaBeta { alpha: cost.messages * link.alpha, beta: cost.volume * link.beta };
            let back = cost.link(line);
            assert!((back.alpha - link.alpha).abs() < 1e-9 && (back.beta - link.beta).abs() < 1e-12, "{back:?}");
        }
    }

    #[test]
    fn lines_cross_where_their_times_are_equal() {
        let (flat, steep) = (AlphaBeta { alpha: 60.0, beta: 0.5 }, AlphaBeta { alpha: 20.0, beta: 1.5 });
        assert_eq!(crossing(flat, steep), Some(40.0));
        assert_eq!(crossing(flat, flat), None);
        assert_eq!(crossing(flat, AlphaBeta { alpha: 20.0, beta: 0.25 }), None);
    }
}
