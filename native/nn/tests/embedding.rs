//! The Melee embedding against its golden file, and its behaviour on valid and invalid rows.
#![allow(clippy::disallowed_methods)]

use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};
use sconce_game::melee::{self, *};
use sconce_game::{Column, FieldKind, mirror_input};
use sconce_nn::embedding::{discretise, undiscretise};
use sconce_nn::heads::NONE;
use sconce_nn::spec::{Backbone, Embedding, HeadKind, Heads, HeadsKind, Melee, MlpConfig, Spec};
use sconce_tensor::{Kind, Result};

/// A tensor of a golden file: its numbers, row-major, and its row width.
struct Table {
    values: Vec<f64>,
    width: usize,
}

type Golden = HashMap<String, Table>;

fn golden(name: &str) -> Golden {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../test/golden/{name}.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let read = |(name, view): (String, safetensors::tensor::TensorView)| {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => data
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            Dtype::I64 => data
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            Dtype::U8 => data.iter().map(|&b| b as f64).collect(),
            other => panic!("{name} is {other:?}"),
        };
        let width = view.shape()[1..].iter().product();
        (name, Table { values, width })
    };
    tensors.tensors().into_iter().map(read).collect()
}

/// The raw rows of `embedding_frames`, whose fields are separate tensors.
fn golden_rows(golden: &Golden) -> Vec<Vec<f32>> {
    let get = |name: &str, frame: usize, i: usize| {
        let table = &golden[&format!("input.{name}")];
        table.values[frame * table.width + i] as f32
    };
    let value = |name: &str, frame: usize| match name.split_once('.') {
        Some(("own", field)) => get(&format!("player.{field}"), frame, 0),
        Some(("opponent", field)) => get(&format!("player.{field}"), frame, 1),
        Some(("prev_buttons", button)) => {
            get("prev_buttons", frame, BUTTONS.iter().position(|&b| b == button).unwrap())
        }
        Some((slot, field)) => {
            let slot = slot.strip_prefix("projectile_").unwrap().parse().unwrap();
            get(&format!("projectile_{field}"), frame, slot)
        }
        None => get(name, frame, 0),
    };
    let frames = golden["input.stage"].values.len();
    let columns = raw_columns();
    (0..frames).map(|f| columns.iter().map(|c| value(&c.name, f)).collect()).collect()
}

fn raw_columns() -> Vec<Column> {
    melee::game().raw_columns()
}

fn column(name: &str) -> Option<usize> {
    melee::game().column(name)
}

fn learned() -> Embedding {
    Embedding::melee(Melee::default())
}

fn packed() -> Embedding {
    Embedding::melee(Melee::packed())
}

fn embed(embedding: &Embedding, raw: &[f32], strict: bool) -> Result<(Vec<f32>, Vec<u32>)> {
    // NaN and u32::MAX reveal numbers that are not written.
    let mut continuous = vec![f32::NAN; embedding.continuous_width()];
    let mut ids = vec![u32::MAX; embedding.num_ids()];
    embedding.embed(raw, strict, &mut continuous, &mut ids)?;
    Ok((continuous, ids))
}

/// A row of a valid live frame.
fn plain_row() -> Vec<f32> {
    let mut row = golden_rows(&golden("embedding_frames"))[7].clone();
    row[STAGE] = 31.0;
    row
}

fn at(name: &str) -> usize {
    column(name).unwrap_or_else(|| panic!("no column {name}"))
}

#[test]
fn the_packed_vector_equals_the_golden_one() {
    let golden = golden("embedding_frames");
    let want = &golden["output.vector"];
    for (frame, row) in golden_rows(&golden).iter().enumerate() {
        let (got, ids) = embed(&packed(), row, true).unwrap();
        assert!(ids.is_empty());
        assert_eq!(got.len(), want.width);
        for (i, (got, want)) in got.iter().zip(&want.values[frame * want.width..]).enumerate() {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= 2e-6 * want.abs().max(1.0), "{frame}, {i}: got {got}, want {want}");
        }
    }
}

#[test]
fn the_learned_features_equal_the_packed_ones_except_stage_names_and_ids() {
    let (packed_schema, learned_schema) = (packed().schema(), learned().schema());
    for row in golden_rows(&golden("embedding_frames")) {
        let (packed, _) = embed(&packed(), &row, false).unwrap();
        let (continuous, ids) = embed(&learned(), &row, false).unwrap();
        let mut compared = 0;
        for feature in learned_schema.iter().filter(|f| f.offset < continuous.len()) {
            let same = packed_schema.iter().find(|f| f.name == feature.name).unwrap();
            let stretch = |from: usize| from..from + feature.width;
            assert_eq!(continuous[stretch(feature.offset)], packed[stretch(same.offset)]);
            compared += feature.width;
        }
        assert_eq!(compared, learned().continuous_width());
        let stage = packed[112..119].iter().position(|&v| v == 1.0).unwrap();
        let id = |name: &str| row[at(name)] as u32;
        let want = ["own.action", "opponent.action", "own.character", "opponent.character"];
        assert_eq!(ids[..4], want.map(id));
        assert_eq!(ids[4], stage as u32);
    }
}

#[test]
fn the_schema_covers_the_vector_without_a_gap() {
    let few = Melee { num_player_names: 3, num_projectiles: 2, ..Melee::default() };
    let deep = Melee { queue_depth: 19, num_delays: 19, ..Melee::default() };
    let none = Melee { num_projectiles: 0, ..Melee::default() };
    let melee = [few, none, deep].map(Embedding::melee);
    let others = [&melee[..], &[Embedding::vector(7)]].concat();
    for embedding in [learned(), packed()].iter().chain(&others) {
        let mut end = 0;
        for feature in embedding.schema() {
            assert_eq!(feature.offset, end, "{}", feature.name);
            assert!(feature.width > 0 && !feature.formula.is_empty());
            end += feature.width;
        }
        assert_eq!(end, embedding.width());
    }
    assert_eq!(packed().width(), 288);
    assert_eq!(learned().continuous_width(), 288 - 5 - 7 - 112);
    assert_eq!(learned().width(), 164 + 4 * 64 + 8);
}

#[test]
fn each_table_has_one_row_more_than_ids() {
    let tables: Vec<_> =
        learned().tables().iter().map(|t| (t.name.clone(), t.rows, t.width)).collect();
    assert_eq!(
        tables,
        [("action".into(), 400, 64), ("character".into(), 34, 64), ("stage".into(), 7, 8)]
    );
    assert_eq!(learned().id_slots().len(), learned().num_ids());
    assert!(packed().tables().is_empty());
}

#[test]
fn every_column_is_found_by_name_and_the_offsets_match() {
    let columns = raw_columns();
    assert_eq!(columns.len(), RAW_WIDTH);
    for (i, c) in columns.iter().enumerate() {
        assert_eq!(column(&c.name), Some(i), "{}", c.name);
    }
    let starts = [
        ("own.percent", OWN),
        ("opponent.percent", OPPONENT),
        ("stage", STAGE),
        ("frame", FRAME),
        ("distance", DISTANCE),
        ("name_id", NAME_ID),
        ("prev_exists", PREVIOUS),
        ("projectile_count", PROJECTILES),
        ("projectile_0.owner", PROJECTILES + 1),
    ];
    for (name, place) in starts {
        assert_eq!(at(name), place, "{name}");
    }
    assert_eq!((PLAYER_WIDTH, CONTROLLER_WIDTH, RAW_WIDTH), (25, 13, 99));
    assert_eq!(column("own.weight"), None);
    assert_eq!(column("projectile_5.x"), None);
    let buttons = BUTTONS.map(|b| at(&format!("prev_buttons.{b}")));
    assert_eq!(buttons.to_vec(), (PREVIOUS + 1..PREVIOUS + 9).collect::<Vec<_>>());
}

#[test]
fn an_id_outside_its_table_is_an_error_live_and_the_last_row_in_a_corpus() {
    let cases = [("own.action", 398.0, 0), ("opponent.character", 32.0, 3), ("stage", 32.0, 4)];
    for (name, max, slot) in cases {
        for value in [5000.0, -1.0, max + 1.0] {
            let mut row = plain_row();
            row[at(name)] = value;
            let error = embed(&learned(), &row, true).unwrap_err();
            assert_eq!(error.to_string(), format!("{name}: {value} is outside 0..{max}"));
            assert_eq!(error.kind(), Kind::OutOfRange);
            let (_, ids) = embed(&learned(), &row, false).unwrap();
            assert_eq!(ids[slot] as usize, learned().id_slots()[slot].rows - 1);
        }
    }
}

#[test]
fn a_stage_without_a_row_of_its_own_is_other_even_in_a_live_frame() {
    let mut row = plain_row();
    row[STAGE] = 29.0;
    assert_eq!(embed(&learned(), &row, true).unwrap().1[4], 6);
}

#[test]
fn a_non_finite_value_is_an_error_that_names_its_column() {
    for c in raw_columns() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = plain_row();
            row[at(&c.name)] = value;
            let error = embed(&learned(), &row, true).unwrap_err();
            assert_eq!(error.kind(), Kind::NonFinite);
            assert!(error.to_string().starts_with(&c.name), "{error} for {}", c.name);
        }
    }
}

#[test]
fn flags_sticks_and_fractional_ids_are_checked_in_live_frames() {
    let refused = [
        ("own.on_ground", 2.0, Kind::OutOfRange),
        ("own.on_ground", 0.5, Kind::Mismatch),
        ("own.action", 3.5, Kind::Mismatch),
        ("prev_main_x", -1.0, Kind::OutOfRange),
        ("projectile_4.owner", 3.0, Kind::OutOfRange),
    ];
    for (name, value, kind) in refused {
        let mut row = plain_row();
        row[at(name)] = value;
        let error = embed(&learned(), &row, true).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().starts_with(name), "{error}");
        assert!(embed(&learned(), &row, false).is_ok());
    }
}

#[test]
fn a_name_is_checked_if_names_are_part_of_the_vector() {
    let named = Embedding::melee(Melee { num_player_names: 4, ..Melee::default() });
    let mut row = plain_row();
    row[NAME_ID] = 4.0;
    let error = embed(&named, &row, true).unwrap_err();
    assert_eq!(error.to_string(), "name_id: 4 is outside 0..3");
    assert!(embed(&learned(), &row, true).is_ok());

    let block = named.schema().into_iter().find(|f| f.name == "name").unwrap();
    let (continuous, _) = embed(&named, &row, false).unwrap();
    assert_eq!(continuous[block.offset..block.offset + block.width], [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn a_buffer_of_the_wrong_length_is_an_error() {
    let row = plain_row();
    let embedding = learned();
    let (width, ids) = (embedding.continuous_width(), embedding.num_ids());
    let mut tries = vec![];
    for (raw, w, n) in
        [(&row[1..], width, ids), (&row[..], width - 1, ids), (&row[..], width, ids + 1)]
    {
        tries.push(embedding.embed(raw, false, &mut vec![0.0; w], &mut vec![0; n]).unwrap_err());
    }
    assert!(tries.iter().all(|e| e.kind() == Kind::Mismatch));
    assert_eq!(tries[0].to_string(), "raw row: expected 99 numbers, got 98");
    assert!(melee::game().mirror(&mut [0.0; 3]).is_err());
}

#[test]
fn a_plain_vector_is_used_unchanged_and_must_be_finite_when_live() {
    let vector = Embedding::vector(3);
    let (got, ids) = embed(&vector, &[1.0, -2.0, 1e9], true).unwrap();
    assert_eq!((got, ids), (vec![1.0, -2.0, 1e9], vec![]));
    let error = embed(&vector, &[1.0, f32::NAN, 0.0], true).unwrap_err();
    assert_eq!(error.to_string(), "vector[1] is not finite (NaN)");
    assert!(embed(&vector, &[1.0, f32::NAN, 0.0], false).is_ok());
    assert!(vector.mirror(&mut [1.0, 2.0, 3.0]).is_err());
}

#[test]
fn discretisation_equals_the_golden_one() {
    let golden = golden("controller_discretise");
    let heads = Heads::controller(HeadsKind::Independent);
    for (i, &value) in golden["input.value"].values.iter().enumerate() {
        let mut labels = [0.0; CONTROLLER_WIDTH];
        discretise(melee::game().parts(), &[value as f32; CONTROLLER_WIDTH], &heads, &mut labels)
            .unwrap();
        let mut back = [0.0; CONTROLLER_WIDTH];
        undiscretise(melee::game().parts(), &labels, &heads, &mut back).unwrap();
        assert!(labels[..8].iter().all(|&bit| bit == f32::from(u8::from(value >= 0.5))));
        for (part, column) in [("axis", 8), ("axis", 11), ("shoulder", 12)] {
            let want = |what: &str| golden[&format!("output.{part}_{what}")].values[i];
            assert_eq!(f64::from(labels[column]), want("index"), "{part} of {value}");
            assert_eq!(f64::from(back[column]), want("value"));
        }
    }
}

#[test]
fn discretisation_uses_the_classes_of_the_heads() {
    let mut heads = Heads::controller(HeadsKind::Independent);
    heads.parts[1].kind = HeadKind::Categorical(21);
    let mut labels = [0.0; CONTROLLER_WIDTH];
    discretise(melee::game().parts(), &[1.0; CONTROLLER_WIDTH], &heads, &mut labels).unwrap();
    assert_eq!(labels, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 20.0, 16.0, 16.0, 16.0, 4.0]);
    labels[9] = 17.0;
    let error = undiscretise(melee::game().parts(), &labels, &heads, &mut [0.0; CONTROLLER_WIDTH])
        .unwrap_err();
    assert_eq!(error.to_string(), "main_y: 17 is outside 0..16");
    heads.parts.pop();
    let error = discretise(melee::game().parts(), &[1.0; CONTROLLER_WIDTH], &heads, &mut labels)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch);
}

#[test]
fn previous_labels_equal_the_previous_action() {
    let heads = Heads::controller(HeadsKind::Independent);
    let mut row = plain_row();
    let mut labels = [9.0; CONTROLLER_WIDTH];
    row[PREVIOUS] = 0.0;
    assert!(!learned().previous_labels(&row, &heads, &mut labels).unwrap());
    assert_eq!(labels, [9.0; CONTROLLER_WIDTH]);

    let controller = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5, 1.0, 0.25, 0.5];
    melee::set_previous(&mut row, &controller).unwrap();
    assert!(learned().previous_labels(&row, &heads, &mut labels).unwrap());
    assert_eq!(labels, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 8.0, 16.0, 4.0, 2.0]);
    assert!(!Embedding::vector(99).previous_labels(&row, &heads, &mut labels).unwrap());
}

#[test]
fn without_a_previous_action_its_place_holds_zeros() {
    let heads = Heads::controller(HeadsKind::Independent);
    let mut row = plain_row();
    let controller = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5, 1.0, 0.25, 0.5];
    melee::set_previous(&mut row, &controller).unwrap();
    for options in [Melee::packed(), Melee::default(), Melee { num_delays: 9, ..Melee::packed() }] {
        let blind = Melee { previous_action: false, ..options.clone() };
        let (seeing, blind) = (Embedding::melee(options), Embedding::melee(blind));
        assert_eq!((seeing.shows_previous(), blind.shows_previous()), (true, false));
        assert_eq!(seeing.width(), blind.width());
        let (mut want, ids) = embed(&seeing, &row, true).unwrap();
        let place = seeing.queue_place(want.len()).unwrap();
        assert!(want[place.clone()].iter().any(|v| *v != 0.0));
        want[place.clone()].fill(0.0);
        let (mut got, own) = embed(&blind, &row, true).unwrap();
        assert_eq!((&got, own), (&want, ids));
        // Nothing writes an input there.
        assert!(blind.queue_place(got.len()).unwrap().is_empty());
        blind.write_queue(&[1.0; 13], &heads, &mut got).unwrap();
        blind.write_input(0, &[1.0; 13], &heads, &mut got).unwrap();
        blind.write_delay(0, &mut want).unwrap();
        blind.write_delay(0, &mut got).unwrap();
        assert_eq!(got, want);
        let zeros = blind.schema().into_iter().find(|f| f.name == "previous").unwrap();
        assert_eq!((zeros.offset, zeros.width, &*zeros.formula), (place.start, 13, "0"));
        let text = serde_json::to_string(&blind).unwrap();
        assert!(text.contains(r#""previous_action":false"#), "{text}");
        assert_eq!(serde_json::from_str::<Embedding>(&text).unwrap(), blind);
        assert!(!serde_json::to_string(&seeing).unwrap().contains("previous_action"));
    }
    let queue = Melee { previous_action: false, queue_depth: 2, ..Melee::packed() };
    let said = Embedding::melee(queue).validate().unwrap_err().to_string();
    assert_eq!(said, "embedding.queue_depth: 2 is outside 1..1");
}

#[test]
fn a_queue_and_a_delay_id_follow_the_previous_action_and_shift_the_rest() {
    let heads = Heads::controller(HeadsKind::Independent);
    let deep = Melee { queue_depth: 4, num_delays: 9, ..Melee::packed() };
    let deep = Embedding::melee(deep);
    // The application's width of such a policy.
    assert_eq!((deep.width(), deep.queue_depth()), (336, 4));
    let row = plain_row();
    let (plain, _) = embed(&packed(), &row, true).unwrap();
    let (mut got, _) = embed(&deep, &row, true).unwrap();
    let start = packed().schema().iter().find(|f| f.name == "prev_buttons.a").unwrap().offset;
    assert_eq!(got[..start + 13], plain[..start + 13]);
    assert_eq!(got[start + 13..start + 61], [0.0; 48], "features that a row does not contain");
    assert_eq!(got[start + 61..336], plain[start + 13..288]);
    let names: Vec<_> = deep.schema().into_iter().map(|f| (f.name, f.offset, f.width)).collect();
    assert!(names.contains(&("queue".into(), start + 13, 39)));
    assert!(names.contains(&("delay_id".into(), start + 52, 9)));
    let end: usize = deep.schema().iter().map(|f| f.width).sum();
    assert_eq!(end, 336);

    let before = got.clone();
    let input = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 8.0, 16.0, 4.0, 2.0];
    let none = [NONE; 13];
    let queue =
        [input, none, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 4.0]].concat();
    deep.write_queue(&queue, &heads, &mut got).unwrap();
    let features = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0, -0.5, 0.5];
    assert_eq!(got[start..start + 13], features);
    assert_eq!(got[start + 13..start + 26], [0.0; 13]);
    let other = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    assert_eq!(got[start + 26..start + 39], other);
    for (delay, class) in [(0, 0), (3, 3), (8, 8), (18, 8)] {
        deep.write_delay(delay, &mut got).unwrap();
        let one_hot: Vec<f32> = (0..9).map(|i| f32::from(u8::from(i == class))).collect();
        assert_eq!(got[start + 52..start + 61], one_hot[..]);
    }
    assert_eq!((&got[..start], &got[start + 61..]), (&before[..start], &before[start + 61..]));
    let mut class = input;
    class[12] = 5.0;
    let error = deep.write_queue(&class, &heads, &mut got).unwrap_err();
    assert_eq!(error.to_string(), "shoulder: 5 is outside 0..4");
    // A vector without these features stays unchanged.
    let mut plain = plain.clone();
    packed().write_delay(3, &mut plain).unwrap();
    assert_eq!(plain, embed(&packed(), &row, true).unwrap().0);
}

#[test]
fn a_queue_is_bounded_needs_a_controller_and_is_absent_in_old_specs() {
    let refused = |options: Melee, heads: &Heads| {
        let embedding = Embedding::melee(options);
        let backbone = Backbone::Mlp(MlpConfig {
            hidden_sizes: vec![4],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        });
        let spec = Spec { embedding, backbone, heads: heads.clone(), critic: None };
        spec.validate().err().map(|e| e.to_string())
    };
    let deep = |queue_depth| Melee { queue_depth, ..Melee::default() };
    let mut heads = Heads::controller(HeadsKind::Independent);
    assert_eq!(refused(deep(64), &heads), None);
    for depth in [0, 65] {
        let said = format!("embedding.queue_depth: {depth} is outside 1..64");
        assert_eq!(refused(deep(depth), &heads), Some(said));
    }
    let wide = Melee { num_delays: 1 << 17, ..Melee::default() };
    let said = "embedding.num_delays: 131072 is outside 0..65536";
    assert_eq!(refused(wide, &heads).as_deref(), Some(said));
    heads.parts.pop();
    assert_eq!(refused(deep(1), &heads), None);
    let said =
        "embedding.queue_depth above 1: expected the heads of an input of melee, got other heads";
    assert_eq!(refused(deep(2), &heads).as_deref(), Some(said));

    let mut json = serde_json::to_value(Melee::default()).unwrap();
    for name in ["queue_depth", "num_delays"] {
        json.as_object_mut().unwrap().remove(name).unwrap();
    }
    assert_eq!(serde_json::from_value::<Melee>(json).unwrap(), Melee::default());
}

#[test]
fn the_mirror_swaps_left_and_right_only() {
    let mut row = plain_row();
    row[PREVIOUS] = 1.0;
    row[at("prev_main_x")] = 0.25;
    let before = row.clone();
    learned().mirror(&mut row).unwrap();
    let swapped = ["facing", "x", "speed_air_x_self", "speed_ground_x_self", "speed_x_attack"];
    let partner = ["nana_x", "nana_facing"];
    let mut expected: Vec<String> = vec![];
    for player in ["own", "opponent"] {
        expected.extend(swapped.iter().chain(&partner).map(|f| format!("{player}.{f}")));
    }
    let slots = 0..NUM_PROJECTILES;
    expected.extend(slots.flat_map(|i| ["x", "speed_x"].map(|f| format!("projectile_{i}.{f}"))));
    for (c, (&new, &old)) in raw_columns().iter().zip(row.iter().zip(&before)) {
        let want = match c.name.as_str() {
            "prev_main_x" | "prev_c_x" => 1.0 - old,
            name if expected.iter().any(|e| e == name) => -old,
            _ => old,
        };
        assert_eq!(new, want, "{}", c.name);
    }
    assert_eq!(row[at("prev_main_x")], 0.75);

    row[PREVIOUS] = 0.0;
    row[at("prev_main_x")] = 0.0;
    learned().mirror(&mut row).unwrap();
    assert_eq!(row[at("prev_main_x")], 0.0);
}

#[test]
fn a_mirrored_stick_has_the_mirrored_class() {
    let heads = Heads::controller(HeadsKind::Independent);
    for class in (0..17).map(|class| class as f32) {
        let mut labels =
            [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, class, 3.0, 16.0 - class, 5.0, 4.0];
        let mut raw = [0.0; CONTROLLER_WIDTH];
        undiscretise(melee::game().parts(), &labels, &heads, &mut raw).unwrap();
        mirror_input(melee::game().parts(), &mut raw).unwrap();
        discretise(melee::game().parts(), &raw, &heads, &mut labels).unwrap();
        assert_eq!(
            labels,
            [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 16.0 - class, 3.0, class, 5.0, 4.0]
        );
    }
}

proptest! {
    #[test]
    fn mirroring_twice_restores_a_row(
        values in prop::collection::vec(-300.0f32..300.0, RAW_WIDTH),
        sticks in prop::collection::vec(0.0f32..=1.0, CONTROLLER_WIDTH),
    ) {
        let mut row = values;
        melee::set_previous(&mut row, &sticks).unwrap();
        let before = row.clone();
        learned().mirror(&mut row).unwrap();
        learned().mirror(&mut row).unwrap();
        for (now, then) in row.iter().zip(&before) {
            // A stick below one half loses a bit in 1 - v.
            prop_assert!((now - then).abs() <= 1e-7);
        }
    }

    #[test]
    fn arbitrary_numbers_embed_or_give_a_typed_error(
        row in prop::collection::vec(prop::num::f32::ANY, RAW_WIDTH)
    ) {
        for embedding in [learned(), packed()] {
            let (_, ids) = embed(&embedding, &row, false).unwrap();
            for (id, slot) in ids.iter().zip(embedding.id_slots()) {
                prop_assert!((*id as usize) < slot.rows);
            }
            if let Err(error) = embed(&embedding, &row, true) {
                let kinds = [Kind::NonFinite, Kind::OutOfRange, Kind::Mismatch];
                prop_assert!(kinds.contains(&error.kind()), "{}", error);
            }
        }
    }

    #[test]
    fn a_live_frame_gives_finite_features(
        mut row in prop::collection::vec(-1e30f32..1e30, RAW_WIDTH)
    ) {
        for (value, column) in row.iter_mut().zip(raw_columns()) {
            if column.kind != FieldKind::Number {
                *value = f32::from(u8::from(*value > 0.0));
            }
        }
        let (continuous, _) = embed(&learned(), &row, true).unwrap();
        prop_assert!(continuous.iter().all(|v| v.is_finite()));
    }
}
