//! The output of `lockstep verify` for labs that tell the truth, lie or are missing.

use insta::assert_snapshot;

use crate::shown;
use crate::site::{Site, finding, json, stderr, stdout};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("verifies_labs_that_do_what_they_claim_and_names_those_that_are_not_built", verifies),
    ("fails_the_claim_of_lab_02_that_each_lie_breaks", fails_lies),
    ("shows_what_holds_and_what_does_not_as_a_table", shows_a_table),
    ("takes_padding_for_what_it_is", takes_padding),
    ("fails_a_resume_to_other_bits", fails_resume),
    ("refuses_labs_that_are_unknown_or_not_built", refuses),
];

fn verifies() {
    let report = json(&Site::new().run("", &["verify", "--report", "-"]).success());
    let verdict_of = |case: usize| {
        (report["cases"][case]["name"].as_str().unwrap(), report["cases"][case]["verdict"].as_str().unwrap())
    };
    assert_eq!(verdict_of(0), ("01-single-gpu", "not verified here"));
    assert_eq!(verdict_of(1), ("02-spawn-ddp", "passed"), "{:#}", report["cases"][1]);
    assert_eq!(verdict_of(2), ("03-torchrun-env", "not verified here"));
    assert_eq!(verdict_of(3), ("04-point-to-point", "not verified here"));
    assert_eq!(verdict_of(5), ("06-snapshot-resume", "passed"), "{:#}", report["cases"][5]["findings"]);
    assert_eq!(verdict_of(7), ("08-image-folder", "not verified here"));
    assert!(finding(&report, 0, "is built")["evidence"].as_str().unwrap().contains("build it with `cargo build`"));
    let claims = ["exit code 0", "is left", "same weights, to the bit", "train as", "Every sample", "learns"];
    claims.iter().for_each(|claim| assert_eq!(finding(&report, 1, claim)["verdict"], "passed"));
    assert_eq!(finding(&report, 5, "Killed: the final weights are bit for bit")["verdict"], "passed");
}

fn fails_lies() {
    let site = Site::new();
    let claims = ["same weights, to the bit", "train as", "Every sample", "learns"];
    for (lie, broken, expected) in [
        ("bit", vec![0], "rank 1 differs from rank 0: 1 value of weight, the first is value 0"),
        ("no weights", vec![0, 3], "cannot read the weights rank-1.safetensors"),
        ("apart", vec![1], "the loss of step 0 of epoch 0 is 1 in A and 1.01 in B"),
        ("twice", vec![1, 2], "step 0 of epoch 0 took other samples in A than in B"),
        ("nan", vec![1, 3], "the loss of step 0 of epoch 0 is NaN in A"),
        ("torn", vec![1, 2, 3], "rank 1's event file is torn at line"),
        ("no events", vec![1, 2, 3], "rank 1 left no event file"),
    ] {
        let report = json(&site.run(lie, &["verify", "02", "--report", "-"]).code(1));
        let failed: Vec<_> =
            (0..4).filter(|index| finding(&report, 0, claims[*index])["verdict"] == "FAILED").collect();
        assert_eq!(failed, broken, "{lie}: {report:#}");
        let evidence = finding(&report, 0, claims[broken[0]])["evidence"].as_str().unwrap();
        assert!(evidence.contains(expected), "{lie}: {evidence}");
    }
}

fn shows_a_table() {
    let site = Site::new();
    let _filters = shown::filtered(None);
    let output = stdout(&site.run("apart", &["verify", "02"]).code(1));
    // Seconds stand in one row, whose lines are broken elsewhere when they have more digits.
    let row =
        output.lines().skip_while(|line| !line.contains("The launcher ends")).take_while(|line| !line.contains("──"));
    let row = row.collect::<Vec<_>>().join("\n");
    assert_snapshot!("verify", output.replace(&row, " passed    The launcher ends with exit code 0: [row]"));
}

fn takes_padding() {
    let report = json(&Site::new().run("", &["verify", "02", "--nprocs", "3", "--report", "-"]).success());
    let evidence_of = |claim| finding(&report, 0, claim)["evidence"].as_str().unwrap().to_owned();
    assert!(
        evidence_of("Every sample").contains("1,024 samples on 3 ranks; 2 repeats an epoch are the sampler's padding")
    );
    assert!(evidence_of("train as").contains("A takes padding too"), "{}", evidence_of("train as"));
}

fn fails_resume() {
    let output = stdout(&Site::new().run("other bits", &["verify", "06"]).code(1));
    assert!(output.contains("✗ 06-snapshot-resume") && output.contains("1 FAILED"), "{output}");
}

fn refuses() {
    let site = Site::new();
    let message = stderr(&site.run("", &["verify", "99"]).code(2));
    assert!(message.contains("there is no lab \"99\": there are 01-single-gpu, 02-spawn-ddp"), "{message}");
    for name in ["3", "03", "03-torchrun-env", "lab-03-torchrun-env", "ex-03"] {
        let message = stderr(&site.run("", &["verify", name]).code(2));
        assert!(message.contains("cannot find the program lab-03-torchrun-env"), "{name}: {message}");
    }
    stderr(&Site::without_labs().run("", &["verify"]).code(2));
}
