//! Task `freeze`: which tensors a step of training still changes, and the count.

use lockstep_grading::{Claim, Stage};

/// A linear layer's name, and its width: it has width² + width numbers in two tensors.
type Layer = (String, usize);

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    // The second of each pair is no part of the head, though it begins with the same letters.
    let heads = [("head", "header"), ("fc", "fc2"), ("classifier", "classifier_before")];
    let mut case = |(head, other): (&str, &str)| {
        let names = [format!("{head}.0"), format!("{head}.2"), other.to_owned(), "layer1.0".into(), "layer1.1".into()];
        let layers: Vec<Layer> = names.into_iter().map(|name| (name, random.below(3..9))).collect();
        (head.to_owned(), layers)
    };
    let cases = heads.map(&mut case);
    let outputs = stage.call::<_, (usize, Vec<String>)>(1, &cases)?;
    cases.iter().enumerate().try_for_each(|(number, case)| judge(case, outputs.of(0, number)))
}

fn judge((head, layers): &(String, Vec<Layer>), (count, changed): &(usize, Vec<String>)) -> anyhow::Result<()> {
    let inside = |name: &str| name.strip_prefix(head.as_str()).is_some_and(|rest| rest.starts_with('.'));
    let tensors = |of: &dyn Fn(&str) -> bool| {
        let names = layers.iter().filter(|(name, _)| of(name));
        let mut names: Vec<String> =
            names.flat_map(|(name, _)| ["bias", "weight"].map(|what| format!("{name}.{what}"))).collect();
        names.sort();
        names
    };
    let numbers = |of: &dyn Fn(&str) -> bool| -> usize {
        layers.iter().filter(|(name, _)| of(name)).map(|(_, width)| width * width + width).sum()
    };
    let all = tensors(&|_| true);
    let given =
        format!("the layers {layers:?} (name, inputs and outputs) and a batch norm \"norm\"; the head is \"{head}\"");
    let expected = tensors(&inside);
    Claim::that(*changed == expected, format!("a step of training changes {expected:?}"), format!("{changed:?}"))
        .given(&given)
        .knows(
            all.iter().all(|name| changed.contains(name)),
            "nothing is frozen: a step of training changes the backbone as well. `detach` makes another tensor, and the parameter is as \
             it was; nobody warns, in Python's `require_grad = False` as little as here",
        )
        .knows(changed.is_empty(), "the head is frozen, too: nothing is trained any more")
        .knows(
            *changed == tensors(&|name| name.starts_with(head.as_str())),
            format!("a module whose name only begins with \"{head}\" is trained, too: a module's name ends at a dot"),
        )
        .otherwise("not just the head is trained")?;
    let (right, norm) = (numbers(&inside), 8);
    let everything = numbers(&|_| true) + norm;
    Claim::equal(&right, count)
        .given(&given)
        .knows(
            *count == everything || *count == everything + norm,
            "the count is that of all parameters: `trainable_variables` lists what was made to be trained once, frozen or not; ask each tensor \
             whether it requires a gradient",
        )
        .knows(*count == expected.len(), "tensors were counted: what matters is how many numbers are in them (`numel`)")
        .otherwise("not the count of numbers in the head's weights and biases")
}
