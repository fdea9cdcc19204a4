use super::*;

/// A pickle of protocol 4 with this body.
fn pickle(body: &[u8]) -> Vec<u8> {
    [&[0x80, 4], body].concat()
}

fn value(body: &[u8]) -> Value {
    read(&pickle(body)).unwrap().1
}

fn error(body: &[u8]) -> PickleError {
    read(&pickle(body)).unwrap_err()
}

#[test]
fn integers_of_every_width_keep_their_sign() {
    assert_eq!(value(b"K\xff."), Value::Int(255));
    assert_eq!(value(b"M\x01\x02."), Value::Int(0x201));
    assert_eq!(value(b"J\xff\xff\xff\xff."), Value::Int(-1));
    assert_eq!(value(b"\x8a\x00."), Value::Int(0));
    assert_eq!(value(b"\x8a\x01\x80."), Value::Int(-128));
    assert_eq!(value(b"\x8a\x06\x00\x00\x00\x00\x40\x7f."), Value::Int(0x7f40_0000_0000));
    assert_eq!(value(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), Value::HugeInt);
    assert_eq!(value(b"\x8b\x02\x00\x00\x00\x00\x01."), Value::Int(256));
}

#[test]
fn containers_and_the_memo_build_a_tree() {
    // {"a": [1, 2], "b": (True, None)} with the list kept and recalled.
    let (arena, root) = read(&pickle(b"}\x94(\x8c\x01a]\x94(K\x01K\x02e\x8c\x01b\x88N\x86\x8c\x01ch\x01u.")).unwrap();
    let list = arena.get(root, "a").unwrap();
    assert_eq!(arena.items(list).unwrap(), [Value::Int(1), Value::Int(2)]);
    assert_eq!(arena.get(root, "c"), Some(list));
    assert_eq!(arena.items(arena.get(root, "b").unwrap()).unwrap(), [Value::Bool(true), Value::None]);
    assert_eq!(arena.get(root, "d"), None);
    assert_eq!(arena.entries(root).unwrap().count(), 3);
}

#[test]
fn protocols_2_to_5_are_read_and_no_other() {
    for protocol in 2..=5 {
        assert!(read(&[0x80, protocol, b'N', b'.']).is_ok());
    }
    for junk in [&b""[..], b"\x80", b"\x80\x01N.", b"\x80\x06N.", b"(dp0\n.", b"{\"segments\": []}", b"PK\x03\x04"] {
        assert_eq!(read(junk).unwrap_err(), PickleError::NotPickle);
    }
}

#[test]
fn code_is_refused_by_name() {
    assert_eq!(error(b"cos\nsystem\n."), PickleError::Code { instruction: "GLOBAL", offset: 2 });
    assert_eq!(error(b"\x8c\x02os\x8c\x06system\x93."), PickleError::Code { instruction: "STACK_GLOBAL", offset: 14 });
    assert_eq!(error(b"N)R."), PickleError::Code { instruction: "REDUCE", offset: 4 });
}

#[test]
fn claimed_lengths_are_checked_before_anything_is_reserved() {
    assert_eq!(
        error(b"\x8e\x00\x00\x00\x80\x00\x00\x00\x00x."),
        PickleError::Truncated { offset: 2, needed: (2 << 30) - 2 }
    );
    assert!(matches!(error(b"X\xff\xff\xff\xffabc"), PickleError::Truncated { .. }));
    assert!(matches!(error(b"\x95\xff\xff\xff\xff\xff\xff\xff\xff"), PickleError::Truncated { .. }));
    assert!(matches!(error(b"\x8b\xff\xff\xff\x7f"), PickleError::Truncated { .. }));
    assert!(matches!(error(b""), PickleError::Truncated { .. }));
}

#[test]
fn stacks_that_do_not_add_up_are_malformed() {
    for body in [
        &b"."[..],
        b"a.",
        b"u.",
        b"(u.",
        b"Na.",
        b"}(Nu.",
        b"]NNs.",
        b"(0.",
        b"\x87.",
        b"N(\x85.",
        b"h\x00.",
        b"2.",
        b"1.",
    ] {
        assert!(matches!(error(body), PickleError::Malformed { .. }), "{body:?}");
    }
    assert_eq!(error(b"\xff."), PickleError::Unknown { opcode: 0xff, offset: 2 });
}

#[test]
fn deep_nesting_and_cycles_cost_no_stack() {
    let mut body = Vec::new();
    body.extend(std::iter::repeat_n(b']', 200_000));
    body.extend(std::iter::repeat_n(b'a', 199_999));
    body.push(b'.');
    assert!(read(&pickle(&body)).is_ok());
    assert!(read(&pickle(b"]\x94h\x00a.")).is_ok());
}

#[test]
fn a_file_of_containers_meets_the_budget() {
    let body = vec![b'}'; 4 << 20];
    assert!(matches!(error(&body), PickleError::TooLarge { .. }));
    let doubling = [b"]K\x01a".to_vec(), b"2".repeat(8 << 20)].concat();
    assert!(read(&pickle(&doubling)).is_err());
}
