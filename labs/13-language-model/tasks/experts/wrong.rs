//! Answers to `experts`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor, no_grad};

use crate::mixture::{Mixture, Routed};

/// The tokens of this rank for each expert.
type Queues = Vec<Vec<i64>>;
/// A number for each rank and expert.
type Counts = Vec<Vec<i64>>;

fn queues(chosen: &Tensor, experts: usize) -> Result<Queues> {
    let mut queues = vec![Vec::new(); experts];
    for (token, expert) in Vec::<i64>::try_from(chosen)?.into_iter().enumerate() {
        queues[expert as usize].push(token as i64);
    }
    Ok(queues)
}

fn lengths(queues: &Queues) -> Vec<i64> {
    queues.iter().map(|queue| queue.len() as i64).collect()
}

/// How many find a place, in the order of ranks.
fn in_order(mixture: &Mixture<'_>, chosen: &Counts) -> Counts {
    let place = |rank: usize, expert: usize| {
        let before: i64 = chosen[..rank].iter().map(|of| of[expert]).sum();
        chosen[rank][expert].min((mixture.limit() as i64 - before).max(0))
    };
    (0..chosen.len()).map(|rank| (0..mixture.experts()).map(|expert| place(rank, expert)).collect()).collect()
}

fn sums(of: &[i64], each: usize) -> Vec<i64> {
    of.chunks(each).map(|of| of.iter().sum()).collect()
}

fn balance(mixture: &Mixture<'_>, probabilities: &Tensor, shares: Vec<f64>) -> Tensor {
    let mean = probabilities.mean_dim([0].as_slice(), false, Kind::Double);
    (mean * Tensor::from_slice(&shares)).sum(Kind::Double) * mixture.experts() as f64
}

fn shares(counts: &Counts) -> Vec<f64> {
    let all: i64 = counts.iter().flatten().sum();
    (0..counts[0].len())
        .map(|expert| counts.iter().map(|of| of[expert]).sum::<i64>() as f64 / all.max(1) as f64)
        .collect()
}

/// What differs between the answers.
struct Way {
    /// Of all tokens, which find a place; of a queue, the first ones.
    places: fn(&Mixture<'_>, &Counts) -> Counts,
    /// Before they are sent, the order of a queue's tokens.
    order: fn(&mut Vec<i64>),
    weighted: bool,
    passes: bool,
    put_back: bool,
    detached: bool,
}

const RIGHT: Way =
    Way { places: in_order, order: |_| (), weighted: true, passes: false, put_back: true, detached: false };

fn by(mixture: &Mixture<'_>, tokens: &Tensor, way: &Way) -> Result<Routed> {
    let (own, rank) = (mixture.own(), mixture.rank());
    let probabilities = mixture.probabilities(tokens);
    let (probability, chosen) = probabilities.max_dim(1, false);
    let mut queues = queues(&chosen, mixture.experts())?;
    queues.iter_mut().for_each(way.order);
    let chosen = mixture.all_numbers(&lengths(&queues))?;
    let placed = (way.places)(mixture, &chosen);
    let sent: Vec<i64> =
        queues.iter().zip(&placed[rank]).flat_map(|(queue, count)| queue[..*count as usize].to_vec()).collect();
    let (dropped, sent) = (tokens.size()[0] as usize - sent.len(), Tensor::from_slice(&sent));
    let to = sums(&placed[rank], own.len());
    let from: Vec<i64> = placed.iter().map(|of| of[own.clone()].iter().sum()).collect();
    let rows = tokens.index_select(0, &sent);
    let there = match way.detached {
        true => no_grad(|| mixture.exchange(&rows.detach(), &to, &from))?,
        false => mixture.exchange(&rows, &to, &from)?,
    };
    let counts: Vec<i64> = placed.iter().flat_map(|of| of[own.clone()].to_vec()).collect();
    let parts = there.split_with_sizes(counts, 0);
    let through = |(number, part): (usize, &Tensor)| mixture.expert(own.start + number % own.len(), part);
    let done = parts.iter().enumerate().map(through).collect::<Result<Vec<_>>>()?;
    let back = mixture.exchange(&Tensor::cat(&done, 0), &from, &to)?;
    let weighted = if way.weighted { back * probability.index_select(0, &sent).unsqueeze(1) } else { back };
    let output = if way.put_back {
        let start = if way.passes { tokens.index_fill(0, &sent, 0.0) } else { tokens.zeros_like() };
        start.index_add(0, &sent, &weighted)
    } else {
        Tensor::cat(&[weighted, Tensor::zeros([dropped as i64, tokens.size()[1]], (Kind::Double, tokens.device()))], 0)
    };
    Ok(Routed { output, dropped, balance: balance(mixture, &probabilities, shares(&chosen)) })
}

/// The given program: all tokens go to one expert of their rank.
#[given]
pub fn one_expert() {}

/// Has no limit.
pub fn no_limit(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    by(mixture, tokens, &Way { places: |_, chosen| chosen.clone(), ..RIGHT })
}

/// Has a limit for each rank.
pub fn limit_of_each(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let places = |mixture: &Mixture<'_>, chosen: &Counts| {
        let of = |rank: &Vec<i64>| rank.iter().map(|count| (*count).min(mixture.limit() as i64)).collect();
        chosen.iter().map(of).collect()
    };
    by(mixture, tokens, &Way { places, ..RIGHT })
}

/// Divides the limit among the ranks.
pub fn limit_in_parts(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let places = |mixture: &Mixture<'_>, chosen: &Counts| {
        let part = mixture.limit().div_ceil(mixture.ranks()) as i64;
        chosen.iter().map(|rank| rank.iter().map(|count| (*count).min(part)).collect()).collect()
    };
    by(mixture, tokens, &Way { places, ..RIGHT })
}

/// Drops the first ones, not the last.
pub fn last_first(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let places = |mixture: &Mixture<'_>, chosen: &Counts| {
        let backwards: Counts = chosen.iter().rev().cloned().collect();
        in_order(mixture, &backwards).into_iter().rev().collect()
    };
    by(mixture, tokens, &Way { places, order: |queue| queue.reverse(), ..RIGHT })
}

/// Forgets the probability.
pub fn not_weighted(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    by(mixture, tokens, &Way { weighted: false, ..RIGHT })
}

/// Returns tokens without a place as they are.
pub fn passes_on(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    by(mixture, tokens, &Way { passes: true, ..RIGHT })
}

/// Leaves the results in the order in which they come back.
pub fn as_they_come(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    by(mixture, tokens, &Way { put_back: false, ..RIGHT })
}

/// Sends copies that do not belong to the graph.
pub fn detached(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    by(mixture, tokens, &Way { detached: true, ..RIGHT })
}

/// Counts the dropped tokens of all ranks.
pub fn all_dropped(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let routed = by(mixture, tokens, &RIGHT)?;
    let all = mixture.all_numbers(&[routed.dropped as i64])?;
    Ok(Routed { dropped: all.concat().iter().sum::<i64>() as usize, ..routed })
}

/// Balances by the tokens of this rank.
pub fn balances_own(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let routed = by(mixture, tokens, &RIGHT)?;
    let probabilities = mixture.probabilities(tokens);
    let own = vec![lengths(&queues(&probabilities.argmax(1, false), mixture.experts())?)];
    Ok(Routed { balance: balance(mixture, &probabilities, shares(&own)), ..routed })
}

/// Balances by the tokens that have a place.
pub fn balances_placed(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let routed = by(mixture, tokens, &RIGHT)?;
    let probabilities = mixture.probabilities(tokens);
    let chosen = mixture.all_numbers(&lengths(&queues(&probabilities.argmax(1, false), mixture.experts())?))?;
    Ok(Routed { balance: balance(mixture, &probabilities, shares(&in_order(mixture, &chosen))), ..routed })
}

/// Forgets the number of experts.
pub fn not_scaled(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let routed = by(mixture, tokens, &RIGHT)?;
    Ok(Routed { balance: routed.balance / mixture.experts() as f64, ..routed })
}

/// Balances what nobody can learn.
pub fn balances_hard(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let routed = by(mixture, tokens, &RIGHT)?;
    let chosen = mixture.probabilities(tokens).argmax(1, false);
    let shares = shares(&mixture.all_numbers(&lengths(&queues(&chosen, mixture.experts())?))?);
    let sum: f64 = shares.iter().map(|share| share * share).sum();
    Ok(Routed { balance: Tensor::from(sum * mixture.experts() as f64), ..routed })
}

/// Takes no part in the exchanges if none of its tokens has a place.
pub fn stays_away(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let probabilities = mixture.probabilities(tokens);
    let chosen = mixture.all_numbers(&lengths(&queues(&probabilities.argmax(1, false), mixture.experts())?))?;
    let placed = in_order(mixture, &chosen);
    if placed[mixture.rank()].iter().sum::<i64>() == 0 {
        let dropped = tokens.size()[0] as usize;
        return Ok(Routed {
            output: tokens.zeros_like(),
            dropped,
            balance: balance(mixture, &probabilities, shares(&chosen)),
        });
    }
    by(mixture, tokens, &RIGHT)
}

/// Expects of each rank as many rows as it sends there.
pub fn expects_the_same(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let probabilities = mixture.probabilities(tokens);
    let queues = queues(&probabilities.argmax(1, false), mixture.experts())?;
    let chosen = mixture.all_numbers(&lengths(&queues))?;
    let to = sums(&in_order(mixture, &chosen)[mixture.rank()], mixture.own().len());
    let sent = Tensor::from_slice(&queues.concat()).narrow(0, 0, to.iter().sum());
    let there = mixture.exchange(&tokens.index_select(0, &sent), &to, &to)?;
    let back = mixture.exchange(&mixture.expert(mixture.own().start, &there)?, &to, &to)?;
    let output = tokens.zeros_like().index_add(0, &sent, &back);
    Ok(Routed { output, dropped: 0, balance: balance(mixture, &probabilities, shares(&chosen)) })
}

/// Sends as many rows to each rank, with zeros where there is no token.
pub fn padded(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let probabilities = mixture.probabilities(tokens);
    let (probability, chosen) = probabilities.max_dim(1, false);
    let queues = queues(&chosen, mixture.experts())?;
    let chosen = mixture.all_numbers(&lengths(&queues))?;
    let placed = in_order(mixture, &chosen);
    let (mine, limit, own) = (&placed[mixture.rank()], mixture.limit() as i64, mixture.own());
    let width = tokens.size()[1];
    let none = |count: i64| Tensor::zeros([count, width], (Kind::Double, tokens.device()));
    let filled = queues.iter().zip(mine).flat_map(|(queue, count)| {
        [tokens.index_select(0, &Tensor::from_slice(&queue[..*count as usize])), none(limit - count)]
    });
    let equal = vec![limit * own.len() as i64; mixture.ranks()];
    let there = mixture.exchange(&Tensor::cat(&filled.collect::<Vec<_>>(), 0), &equal, &equal)?;
    let blocks = there.split(limit, 0);
    let counts: Vec<i64> = placed.iter().flat_map(|of| of[own.clone()].to_vec()).collect();
    let through = |(number, block): (usize, &Tensor)| -> Result<Tensor> {
        let count = counts[number];
        let done = mixture.expert(own.start + number % own.len(), &block.narrow(0, 0, count))?;
        Ok(Tensor::cat(&[done, none(limit - count)], 0))
    };
    let done = blocks.iter().enumerate().map(through).collect::<Result<Vec<_>>>()?;
    let back = mixture.exchange(&Tensor::cat(&done, 0), &equal, &equal)?.split(limit, 0);
    let mut output = tokens.zeros_like();
    for ((queue, count), block) in queues.iter().zip(mine).zip(back) {
        let at = Tensor::from_slice(&queue[..*count as usize]);
        let weight = probability.index_select(0, &at).unsqueeze(1);
        output = output.index_add(0, &at, &(block.narrow(0, 0, *count) * weight));
    }
    let dropped = tokens.size()[0] as usize - mine.iter().sum::<i64>() as usize;
    Ok(Routed { output, dropped, balance: balance(mixture, &probabilities, shares(&chosen)) })
}

/// Returns results in the order of the experts.
#[edit(&Tensor::cat(&done, 0) => &Tensor::cat(&(0..own.len()).flat_map(|number| done[number..].iter().step_by(own.len())).collect::<Vec<_>>(), 0))]
pub fn returned_by_expert() {}

/// Takes what arrives for sorted by expert.
#[edit(placed.iter().flat_map(|of| of[own.clone()].to_vec()) => own.clone().flat_map(|expert| placed.iter().map(move |of| of[expert])))]
#[edit(number % own.len() => number / ranks)]
pub fn arrived_by_expert() {}

/// Takes one token less.
#[edit(mixture.limit() as i64 => mixture.limit() as i64 - 1)]
pub fn one_less() {}

/// Takes the probability as a number.
#[edit(back * probability.index_select => back * probability.detach().index_select)]
pub fn probability_detached() {}

/// Takes the mean probabilities as numbers.
#[edit(let mean = probabilities.mean_dim => let mean = probabilities.detach().mean_dim)]
pub fn balance_detached() {}

/// Counts tokens, not shares.
#[edit(let total = (tokens.size()[0] * ranks as i64) as f64 => let total = 1.0)]
pub fn counted_tokens() {}

/// Counts the tokens with a place.
#[edit(tokens.size()[0] as usize - sent.len() => sent.len())]
pub fn counts_placed() {}

/// Multiplies by the probability twice.
#[edit(unsqueeze(1) => unsqueeze(1) * probability.index_select(0, &sent).unsqueeze(1))]
pub fn weighted_twice() {}

/// Returns one percent more: a mistake of no known kind.
#[edit(&sent, &weighted => &sent, &(weighted * 1.01))]
pub fn one_percent() {}

/// Right: sorts the tokens by expert, and finds places and ways with tensors.
pub fn sorted(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let (own, rank, ranks) = (mixture.own(), mixture.rank() as i64, mixture.ranks() as i64);
    let probabilities = mixture.probabilities(tokens);
    let (probability, chosen) = probabilities.max_dim(1, false);
    let counts = chosen.bincount::<Tensor>(None, mixture.experts() as i64);
    let all = mixture.all_numbers(&Vec::<i64>::try_from(&counts)?)?;
    let all = Tensor::from_slice(&all.concat()).view([ranks, -1]);
    let before = all.cumsum(0, Kind::Int64) - &all;
    let placed = (mixture.limit() as i64 - before).clamp_min(0).minimum(&all);
    let (_, order) = chosen.sort_stable(true, 0, false);
    let expert = chosen.index_select(0, &order);
    let first = counts.cumsum(0, Kind::Int64) - &counts;
    let place = Tensor::arange(order.size()[0], (Kind::Int64, order.device())) - first.index_select(0, &expert);
    let sent = order.masked_select(&place.lt_tensor(&placed.get(rank).index_select(0, &expert)));
    let by_rank = placed.view([ranks, ranks, -1]).sum_dim_intlist([2].as_slice(), false, Kind::Int64);
    let (to, from) =
        (Vec::<i64>::try_from(by_rank.get(rank))?, Vec::<i64>::try_from(by_rank.select(1, rank).contiguous())?);
    let there = mixture.exchange(&tokens.index_select(0, &sent), &to, &from)?;
    let counts = placed.narrow(1, own.start as i64, own.len() as i64).contiguous().view([-1]);
    let parts = there.split_with_sizes(Vec::<i64>::try_from(counts)?, 0);
    let mut done: Vec<Tensor> = parts.iter().map(Tensor::shallow_clone).collect();
    for (number, expert) in own.clone().enumerate() {
        let rows: Vec<&Tensor> = parts.iter().skip(number).step_by(own.len()).collect();
        let sizes: Vec<i64> = rows.iter().map(|part| part.size()[0]).collect();
        let outputs = mixture.expert(expert, &Tensor::cat(&rows, 0))?.split_with_sizes(sizes, 0);
        outputs.into_iter().enumerate().for_each(|(rank, rows)| done[rank * own.len() + number] = rows);
    }
    let back = mixture.exchange(&Tensor::cat(&done, 0), &from, &to)?;
    let weighted = back * probability.index_select(0, &sent).unsqueeze(1);
    let shares = all.sum_dim_intlist([0].as_slice(), false, Kind::Double) / all.sum(Kind::Double);
    let mean = probabilities.mean_dim([0].as_slice(), false, Kind::Double);
    Ok(Routed {
        output: tokens.zeros_like().index_add(0, &sent, &weighted),
        dropped: (tokens.size()[0] - sent.size()[0]) as usize,
        balance: (mean * shares).sum(Kind::Double) * mixture.experts() as f64,
    })
}

/// Right: multiplies with the probability before the way back is over, and scatters instead of adding.
pub fn one_by_one(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    let routed = by(mixture, tokens, &Way { weighted: false, ..RIGHT })?;
    let probabilities = mixture.probabilities(tokens);
    let rows: Vec<Tensor> = (0..tokens.size()[0])
        .map(|token| {
            let of = probabilities.get(token);
            routed.output.get(token) * of.gather(0, &of.argmax(0, true), false)
        })
        .collect();
    Ok(Routed { output: Tensor::stack(&rows, 0), ..routed })
}

/// Right: passes no rows through no expert.
#[edit(mixture.expert(own.start + number % own.len(), part) => if part.size()[0] == 0 { Ok(part * 0.0) } else { mixture.expert(own.start + number % own.len(), part) })]
pub fn skips_idle_experts() {}
