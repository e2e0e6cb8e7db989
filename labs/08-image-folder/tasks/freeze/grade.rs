//! Grades `freeze`: which tensors a training step still changes, and the count.

use lockstep_grading::{Claim, Runner};

/// The name and width of a linear layer, which has width² + width numbers in two tensors.
type Layer = (String, usize);
/// The count, the variables that a training step has changed, and the buffers that a gradient would be computed for.
type Frozen = (usize, Vec<String>, Vec<String>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The second of each pair is not part of the head, although its name begins with the same letters.
    let heads = [("head", "header"), ("fc", "fc2"), ("classifier", "classifier_before")];
    let mut case = |(head, other): (&str, &str)| {
        // A block of the backbone has a module of the head's name.
        let within = format!("layer1.{head}");
        let names = [format!("{head}.0"), format!("{head}.2"), other.to_owned(), "layer1.0".into(), within];
        let layers: Vec<Layer> = names.into_iter().map(|name| (name, random.below(3..9))).collect();
        (head.to_owned(), layers)
    };
    let cases = heads.map(&mut case);
    let outputs = runner.call::<_, Frozen>(1, &cases)?;
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, outputs.of(0, number)))
}

fn check((head, layers): &(String, Vec<Layer>), (count, changed, buffers): &Frozen) -> anyhow::Result<()> {
    let inside = |name: &str| name.strip_prefix(head.as_str()).is_some_and(|rest| rest.starts_with('.'));
    let tensors = |of: &dyn Fn(&str) -> bool| {
        let names = layers.iter().filter(|(name, _)| of(name));
        let mut names: Vec<String> =
            names.flat_map(|(name, _)| ["bias", "weight"].map(|what| format!("{name}.{what}"))).collect();
        let norms = [format!("{head}.1"), "norm".to_owned()].into_iter().filter(|name| of(name));
        names.extend(norms.flat_map(|name| ["bias", "weight"].map(|what| format!("{name}.{what}"))));
        names.sort();
        names
    };
    let numbers = |of: &dyn Fn(&str) -> bool| -> usize {
        layers.iter().filter(|(name, _)| of(name)).map(|(_, width)| width * width + width).sum::<usize>()
    };
    let all = tensors(&|_| true);
    let rows: Vec<String> =
        layers.iter().map(|(name, width)| format!("{name}: linear, {width} inputs and {width} outputs")).collect();
    let given = format!(
        "the head is \"{head}\", and the modules are\n{}\n{head}.1: batch norm of 4\nnorm: batch norm of 4",
        rows.join("\n")
    );
    let expected = tensors(&inside);
    Claim::that(*changed == expected, format!("a training step changes {}", expected.join(", ")), if changed.is_empty() { "nothing".into() } else { changed.join(", ") })
        .given(&given)
        .diagnose_if(
            all.iter().all(|name| changed.contains(name)),
            "nothing is frozen: a training step changes the backbone as well. `detach` returns another tensor and leaves the parameter as \
             it was. Nothing warns of it, as nothing warns of the misspelt `require_grad = False` in Python",
        )
        .diagnose_if(
            changed.is_empty(),
            "the head is frozen, too, so nothing is trained: its parameters may be those of modules in it, such as `head.0.bias`",
        )
        .diagnose_if(
            !changed.iter().any(|name| expected.contains(name)),
            "reversed: the head is frozen, and the rest is trained",
        )
        .diagnose_if(
            *changed == tensors(&|name| name.starts_with(head.as_str())),
            format!("a module whose name only begins with \"{head}\" is trained, too: the name of a module ends at a dot"),
        )
        .diagnose_if(
            *changed == tensors(&|name| name.split('.').any(|part| part == head)),
            format!("a module \"{head}\" within the backbone is trained, too: the names of the head's parameters begin with \"{head}.\""),
        )
        .diagnose_if(
            changed.iter().all(|name| expected.contains(name) || name.ends_with(".bias")),
            "the backbone's weights are frozen, and its biases are not: all of its parameters must keep their values",
        )
        .or_fail("train the head and nothing else")?;
    Claim::that(buffers.is_empty(), "no gradient for a buffer", buffers.join(", "))
        .given(&given)
        .or_fail(
            "a batch norm's running mean and variance are buffers, which are not trained, and `vs.variables()` lists them, too: do not set \
             `requires_grad` where it was not set",
        )?;
    // Weights and biases of a batch norm, and its two buffers.
    let (norm, statistics) = (8, 8);
    let right = numbers(&inside) + norm;
    let everything = numbers(&|_| true) + 2 * norm;
    Claim::that(*count == right, format!("{right} numbers"), format!("{count}"))
        .given(&given)
        .diagnose_if(
            *count == everything || *count == everything + 2 * statistics,
            "the count is that of all parameters: `trainable_variables` lists every parameter that was created as trainable, frozen or \
             not. Check whether each tensor requires a gradient",
        )
        .diagnose_if(
            *count == right + statistics,
            "the head's buffers are counted, too: a batch norm's running mean and variance are not trained",
        )
        .diagnose_if(*count == expected.len(), "tensors were counted: count the numbers in them (`numel`)")
        .or_fail("count the numbers in the head's weights and biases")
}
