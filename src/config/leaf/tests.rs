//! The laws of leaf types, over values of every kind.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::amount::{Amount, Rung, Share};
use super::choice::{Choice, Pinning};
use super::list::{Accumulation, Candidates, Devices};
use super::memory::{Limit, Size};
use super::number::{Factor, LearningRate, Whole};
use super::text::{Argument, DeviceName, Text};
use super::time::Time;
use crate::train::Precision;

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// What is taken prints in a form that is taken again and means the same; what is refused is told what is allowed.
fn check<T: DeserializeOwned + Serialize + PartialEq + Debug>(taken: &[Value], refused: &[Value]) {
    for value in taken {
        let leaf: T = read(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}"));
        let printed = serde_json::to_value(&leaf).unwrap();
        assert_eq!(read::<T>(printed.clone()), Ok(leaf), "{value} printed as {printed}");
    }
    for value in refused {
        let error = read::<T>(value.clone()).unwrap_err();
        assert!(error.contains("expected"), "{value}: {error}");
    }
}

#[test]
fn every_leaf_type_reads_back_what_it_prints_and_refuses_with_an_example() {
    check::<Whole<1, 8>>(
        &[json!(1), json!(8)],
        &[json!(0), json!(9), json!(-1), json!(1.5), json!("4"), json!(true), json!(null)],
    );
    check::<LearningRate>(&[json!(3e-4), json!(1)], &[json!(0), json!(-0.1), json!("fast"), json!(1e9)]);
    check::<Factor>(&[json!(0), json!(1.5)], &[json!(-1), json!(101), json!("2x")]);
    check::<Share<0, 100>>(
        &[json!("0%"), json!("30%"), json!("2.5 %"), json!("33.3333333%"), json!("7%"), json!("100%")],
        &[json!("101%"), json!("-1%"), json!(0.3), json!("30"), json!("%")],
    );
    check::<Amount>(&[json!("50%"), json!(32)], &[json!("0%"), json!("150%"), json!(0), json!("32"), json!([1])]);
    check::<Rung>(&[json!("auto"), json!("12.5%"), json!(8)], &[json!("none"), json!(0)]);
    check::<Time>(
        &[json!("120s"), json!("1h 30m"), json!("1.5s"), json!("500ms")],
        &[json!("0s"), json!("-5s"), json!(120), json!("10 years"), json!("soon")],
    );
    check::<Size>(
        &[json!("600KiB"), json!("1 MiB"), json!("1GiB"), json!(1001)],
        &[json!("0B"), json!(0), json!("2GiB"), json!("-1B"), json!("50%"), json!("auto"), json!(1.5)],
    );
    check::<Limit>(
        &[
            json!("auto"),
            json!("85%"),
            json!("40GiB"),
            json!("1.5 GiB"),
            json!("1001 B"),
            json!(123_456_789),
            json!("40GB"),
        ],
        &[json!("0%"), json!("120%"), json!("0"), json!("99999 PiB"), json!("-1GiB"), json!("lots"), json!(0)],
    );
    check::<Text>(
        &[json!("gpt2-medium"), json!("ünï")],
        &[json!(""), json!(" "), json!("a\u{1b}[2J"), json!("a\nb"), json!(7)],
    );
    check::<DeviceName>(&[json!("auto"), json!("cpu"), json!("cuda:1")], &[json!("tpu"), json!("cuda:x"), json!(0)]);
    check::<Argument>(
        &[json!("x"), json!(""), json!(-7), json!(0.5), json!(true)],
        &[json!("a\0b"), json!([1]), json!({"a": 1})],
    );
    check::<Choice<Precision>>(&[json!("bf16")], &[json!("fp16"), json!(16), json!(null)]);
    check::<Pinning>(&[json!(true), json!(false), json!("auto")], &[json!("yes"), json!(1)]);
    check::<Candidates<0, 1024>>(
        &[json!([0, 1, 1024])],
        &[json!([]), json!([1, 1]), json!([1025]), json!(1), json!("1")],
    );
    check::<Accumulation>(&[json!("auto"), json!([1, 2])], &[json!("any"), json!([0]), json!([2, 2]), json!(2)]);
    check::<Devices>(&[json!("auto"), json!("all"), json!(["cuda:0", "cuda:1"])], &[json!("cuda:0"), json!(["x"])]);
}

#[test]
fn an_unquoted_placeholder_is_an_argument() {
    assert_eq!(read(json!({"batch_size": null})), Ok(Argument("{batch_size}".to_owned())));
}

#[test]
fn a_share_of_the_target_rounds_up_for_the_start_and_down_for_the_most() {
    let share = |percent: &str| read::<Amount>(json!(percent)).unwrap();
    assert_eq!(share("50%").at_least(33), 17);
    assert_eq!(share("50%").at_most(33), 16);
    assert_eq!(share("7%").at_least(100), 7);
    assert_eq!(share("29%").at_most(100), 29);
    assert_eq!(share("1%").at_most(16), 1);
}

#[test]
fn a_long_value_leaves_room_for_what_is_allowed() {
    let error = read::<Whole<1, 8>>(json!("é".repeat(100_000))).unwrap_err();
    assert!(error.len() < 400 && error.contains("expected a whole number"), "{error}");
}
