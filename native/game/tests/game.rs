//! Declared games: the columns of a row, and the effect of a mirror on it.
#![allow(clippy::disallowed_methods)]

use sconce_game::{
    Declaration, Feature, Field, FieldKind, Game, InputKind, InputMirror, InputPart, Mirror, Scale,
    encode, features, melee, mirror_input,
};
use sconce_tensor::Kind;

fn field(name: &str, kind: FieldKind, mirror: Mirror) -> Field {
    let (meaning, scale) = ("".into(), Scale::AsIs);
    Field { name: name.to_owned().into(), meaning, kind, scale, mirror, table: None, default: None }
}

fn part(name: &str, kind: InputKind, mirror: InputMirror) -> InputPart {
    let (name, meaning) = (name.to_owned().into(), "".into());
    InputPart { name, meaning, kind, mirror, scale: Scale::AsIs, rest: None }
}

fn flags(names: &[&'static str]) -> InputKind {
    InputKind::Flags(names.iter().map(|name| (*name).into()).collect())
}

/// A field and a part of every kind, with the previous input between fields.
fn declaration() -> Declaration {
    let range = FieldKind::Range { min: -2.0, max: 6.0 };
    let swap = |name: &'static str| Mirror::Swap(name.into());
    Declaration {
        name: "all".into(),
        version: 1,
        fields: vec![
            field("number", FieldKind::Number, Mirror::Negate),
            field("range", range, Mirror::Flip),
            field("left", FieldKind::Vector(2), swap("right")),
            field("right", FieldKind::Vector(2), swap("left")),
            field("id", FieldKind::Id(4), Mirror::Permute(vec![0, 2, 1, 3].into())),
            field("class", FieldKind::OneHot(3), Mirror::Keep),
            field("flag", FieldKind::Flag, Mirror::Keep),
        ],
        tables: vec![],
        input: vec![
            part("held", flags(&["l", "r", "up"]), InputMirror::Permute(vec![1, 0, 2].into())),
            part("axis", InputKind::Axis { min: -1.0, max: 3.0, classes: 5 }, InputMirror::Flip),
            part("pick", InputKind::Choice(3), InputMirror::Permute(vec![2, 1, 0].into())),
        ],
        previous_after: Some(2),
    }
}

const ROW: [f32; 15] =
    [7.0, -1.0, 1.0, 1.0, 0.0, 1.0, 2.5, 0.0, 10.0, 20.0, 30.0, 40.0, 1.0, 2.0, 1.0];

#[test]
fn a_row_has_the_previous_input_between_its_fields() {
    let game = Game::from(declaration());
    game.validate().unwrap();
    let names: Vec<_> = game.raw_columns().into_iter().map(|c| c.name).collect();
    let expected = [
        "number",
        "range",
        "prev_exists",
        "prev_held.l",
        "prev_held.r",
        "prev_held.up",
        "prev_axis",
        "prev_pick",
        "left[0]",
        "left[1]",
        "right[0]",
        "right[1]",
        "id",
        "class",
        "flag",
    ];
    assert_eq!(names, expected);
    assert_eq!(game.width(), expected.len());
    for (column, name) in expected.iter().enumerate() {
        assert_eq!(game.column(name), Some(column));
    }
    game.check(&ROW).unwrap();
    assert_eq!(game.previous(&ROW), Some(&[1.0, 0.0, 1.0, 2.5, 0.0][..]));
    let mut row = ROW;
    game.forget_previous(&mut row).unwrap();
    assert_eq!((game.previous(&row), row[2..8].iter().sum::<f32>()), (None, 0.0));
    game.set_previous(&mut row, &[1.0, 0.0, 1.0, 2.5, 0.0]).unwrap();
    assert_eq!(row, ROW);
}

#[test]
fn a_mirror_swaps_left_and_right_and_is_its_own_inverse() {
    let game = Game::from(declaration());
    let mut row = ROW;
    game.mirror(&mut row).unwrap();
    let swapped = [-7.0, 5.0, 1.0, 0.0, 1.0, 1.0, -0.5, 2.0, 30.0, 40.0, 10.0, 20.0, 2.0, 2.0, 1.0];
    assert_eq!(row, swapped);
    game.mirror(&mut row).unwrap();
    assert_eq!(row, ROW);
    let mut numbers = [1.0, 0.0, 1.0, 2.5, 0.0];
    mirror_input(game.parts(), &mut numbers).unwrap();
    assert_eq!(numbers, swapped[3..8]);
    let error = Game::vector(3).mirror(&mut [0.0; 3]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "mirror: expected a game with a mirror, got vector, which has none"
    );
}

#[test]
fn labels_of_an_axis_convert_to_numbers_and_back() {
    let axis = InputKind::Axis { min: -1.0, max: 3.0, classes: 5 };
    for (label, value) in [(0.0, -1.0), (1.0, 0.0), (2.0, 1.0), (3.0, 2.0), (4.0, 3.0)] {
        assert_eq!(axis.value(label, 5), value);
        assert_eq!(axis.label(value, 5), label);
        assert_eq!(axis.label(value + 0.4, 5), label);
    }
    // Values of a corpus outside the range are clamped.
    assert_eq!((axis.label(-9.0, 5), axis.label(9.0, 5)), (0.0, 4.0));
}

#[test]
fn an_input_becomes_features_and_a_choice_becomes_a_one_hot() {
    let game = Game::from(declaration());
    let mut out = [9.0; 7];
    encode(game.parts(), &[1.0, 0.0, 1.0, 2.5, 2.0], &mut out);
    assert_eq!(out, [1.0, 0.0, 1.0, 2.5, 0.0, 0.0, 1.0]);
    assert_eq!(game.input_width(), 7);
}

#[test]
fn a_declaration_is_the_same_after_json() {
    let text = serde_json::to_string(&declaration()).unwrap();
    let again: Declaration = serde_json::from_str(&text).unwrap();
    assert_eq!(again, declaration());
    assert_eq!(Game::from(again), Game::from(declaration()));
}

#[test]
fn melee_is_a_valid_declaration() {
    melee::game().validate().unwrap();
    assert_eq!(melee::game().width(), melee::RAW_WIDTH);
    assert_eq!(melee::game().previous_column(), melee::PREVIOUS);
    assert_eq!(melee::game().input_numbers(), melee::CONTROLLER_WIDTH);
}

#[test]
fn lists_in_a_file_are_bounded_before_they_are_allocated() {
    let field = serde_json::to_value(&declaration().fields[0]).unwrap();
    let mut json = serde_json::to_value(declaration()).unwrap();
    json["fields"] = serde_json::Value::Array(vec![field; 1025]);
    let error = serde_json::from_value::<Declaration>(json).unwrap_err();
    assert!(error.to_string().contains("more than 1024"), "{error}");
}

#[test]
fn a_contradictory_declaration_is_an_error_and_never_a_panic() {
    let range = |min, max| FieldKind::Range { min, max };
    let with = |fields: Vec<Field>, input: Vec<InputPart>| Declaration {
        name: "g".into(),
        fields,
        input,
        ..Declaration::default()
    };
    let keep = Mirror::Keep;
    let mut tabled = field("a", FieldKind::Id(3), keep.clone());
    tabled.table = Some("none".into());
    let mut scaled = field("a", FieldKind::Number, keep.clone());
    scaled.scale = Scale::Over { by: f32::NAN, min: 0.0, max: 1.0 };
    let wide = |n| field("a", FieldKind::Vector(n), keep.clone());
    let pick = |n, to: Vec<u16>| part("p", InputKind::Choice(n), InputMirror::Permute(to.into()));
    let plain = || vec![field("a", FieldKind::Number, Mirror::Keep)];
    let cases = [
        (with(vec![], vec![]), Kind::OutOfRange),
        (with(vec![wide(0)], vec![]), Kind::OutOfRange),
        (with(vec![wide(usize::MAX)], vec![]), Kind::OutOfRange),
        (with(vec![field("a", range(1.0, f32::NAN), keep.clone())], vec![]), Kind::Mismatch),
        (with(vec![field("a", range(f32::MIN, f32::MAX), keep.clone())], vec![]), Kind::Mismatch),
        (with(vec![field("a", FieldKind::Flag, Mirror::Negate)], vec![]), Kind::Mismatch),
        (
            with(vec![field("a", FieldKind::Number, Mirror::Swap("a".into()))], vec![]),
            Kind::Mismatch,
        ),
        (with(vec![field("A", FieldKind::Number, keep.clone())], vec![]), Kind::Mismatch),
        (with(vec![tabled], vec![]), Kind::Mismatch),
        (with(vec![scaled], vec![]), Kind::Mismatch),
        (with(plain(), vec![pick(1, vec![0])]), Kind::OutOfRange),
        (with(plain(), vec![pick(3, vec![1, 2, 0])]), Kind::Mismatch),
        (with(plain(), vec![pick(3, vec![0, 9, 1])]), Kind::Mismatch),
        (
            with(plain(), vec![part("p", InputKind::Bits(usize::MAX), InputMirror::Keep)]),
            Kind::OutOfRange,
        ),
        (with(plain(), vec![part("a", InputKind::Choice(2), InputMirror::Keep)]), Kind::Mismatch),
        (with(plain(), vec![part("p", InputKind::Choice(2), InputMirror::Flip)]), Kind::Mismatch),
    ];
    for (i, (declaration, kind)) in cases.into_iter().enumerate() {
        let game = Game::from(declaration);
        let error = game.validate().unwrap_err();
        assert_eq!(error.kind(), kind, "case {i}: {error}");
        // Code that reads a declaration before validation allocates only bounded memory.
        let _ = (game.width(), game.input_width(), features(&game, true, 3, 2).len());
    }
}

#[test]
fn features_have_the_width_that_they_declare() {
    let game = Game::from(declaration());
    let mut total = 0;
    for block in features(&game, false, 3, 4) {
        for feature in &block.features {
            let width = feature.width(&game);
            let described: usize = feature.describe(&game).iter().map(|(_, width, _)| width).sum();
            assert_eq!(described, width);
            let mut out = vec![f32::NAN; width];
            feature.write(&game, &ROW, &mut out);
            assert!(out.iter().all(|value| value.is_finite()), "{feature:?}");
            total += width;
            if let Feature::Queue { .. } = feature {
                assert_eq!(width, 14);
            }
        }
    }
    // Fields with a one-hot of three, the previous input, two earlier inputs, and the delay.
    assert_eq!(total, 2 + 4 + 1 + 3 + 1 + 7 + 14 + 4);
}
