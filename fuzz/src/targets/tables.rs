//! Reads declarations of games, and played games as text.
//!
//! An input is a declaration as JSON, an empty line, and a file. The file is JSON lines if it begins with a
//! brace, otherwise CSV.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, ImportOptions, Reader, import_tables};
use sconce_game::Declaration;
use sconce_nn::spec::{Declared, Embedding};
use sconce_tensor::{Error, Result};
use serde_json::json;

use crate::rng::Rng;

fn declaration() -> String {
    let plain = |name: &str, kind: serde_json::Value| json!({"name": name, "kind": kind});
    json!({
        "name": "cart", "version": 1,
        "fields": [
            {"name": "x", "kind": {"range": {"min": -1.0, "max": 1.0}}, "mirror": "negate",
             "scale": {"between": {"min": -1.0, "max": 1.0}}},
            {"name": "id", "kind": {"id": 3}, "table": "id", "mirror": {"permute": [1, 0, 2]}},
            {"name": "l", "kind": "number", "mirror": {"swap": "r"}},
            {"name": "r", "kind": "number", "mirror": {"swap": "l"}, "default": 0.5},
            plain("ray", json!({"vector": 2})),
            plain("on", json!("flag")),
            plain("of", json!({"one_hot": 3})),
        ],
        "tables": [{"name": "id", "ids": {"below": 3}, "width": 2}],
        "input": [
            {"name": "b", "kind": {"flags": ["u", "d"]}, "mirror": {"permute": [1, 0]}},
            {"name": "a", "kind": {"axis": {"min": 0.0, "max": 1.0, "classes": 3}}, "mirror": "flip"},
            {"name": "c", "kind": {"choice": 3}},
        ],
    })
    .to_string()
}

pub fn seeds() -> Vec<Vec<u8>> {
    let csv = "x,id,l,r,ray[0],ray[1],on,of,b.u,b.d,a,c,reward,end\n\
               0.5,1,7,8,1,2,true,2,0,1,0.25,2,1,0\n-0.5,2,7,,1,2,0,0,1,1,1,0,0.5,1\n";
    let lines = "{\"x\":0,\"id\":0,\"l\":1,\"ray\":[1,2],\"on\":false,\"of\":1,\"b\":[\"u\"],\"a\":1,\"c\":0}\n\
                 {\"x\":1,\"id\":2,\"l\":1,\"ray[0]\":1,\"ray[1]\":2,\"on\":1,\"of\":0,\"b\":{\"d\":true},\"a\":0,\"c\":2}\n";
    [csv, lines].map(|text| format!("{}\n\n{text}", declaration()).into_bytes()).into()
}

/// Changes the declaration within its structure, or cells of the text.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(input).into_owned();
    let (declaration, rows) = text.split_once("\n\n").unwrap_or((&text, ""));
    if rng.below(2) == 0 {
        let mut json = declaration.as_bytes().to_vec();
        crate::json::mutate_text(rng, &mut json);
        *input = [&json, b"\n\n".as_slice(), rows.as_bytes()].concat();
        return;
    }
    let values =
        ["", "1e39", "-1", "NaN", "2.5", "true", "\"", "99999999999", "\u{feff}x", "x", "\r"];
    let mut cells: Vec<&str> = rows.split_inclusive([',', '\n']).collect();
    if !cells.is_empty() {
        let at = rng.below(cells.len());
        match rng.below(3) {
            0 => drop(cells.remove(at)),
            1 => cells.insert(at, *rng.pick::<&str>(&values)),
            _ => cells[at] = *rng.pick::<&str>(&values),
        }
    }
    *input = format!("{declaration}\n\n{}", cells.concat()).into_bytes();
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let (declaration, text) = bytes.split_at(end);
    let text = text.get(2..).unwrap_or_default();
    let game: Declaration = serde_json::from_slice(declaration)
        .map_err(|error| Error::corrupt("declaration", error))?;
    let embedding = Embedding::declared(Declared::new(game.clone()));
    embedding.validate()?;
    let name = if text.starts_with(b"{") { "game.jsonl" } else { "game.csv" };
    let (file, into) = (dir.join(name), dir.join("corpus"));
    fs::write(&file, text).map_err(Error::io(&file))?;
    let options = ImportOptions { min_frames: 1, threads: 1, ..ImportOptions::default() };
    let never = AtomicBool::new(false);
    let report = import_tables(&game, &[file], &into, &options, &|_| (), &never)?;
    if report.added == 0 {
        let said = report.skipped.first().map(|file| file.detail.clone()).unwrap_or_default();
        return Err(Error::corrupt("game", said));
    }
    // Reads the corpus as training does.
    let corpus = Corpus::open(&into)?;
    let heads = corpus.schema().heads();
    let reader = Reader { queue_depth: 2, ..Reader::new(embedding.clone(), heads, 0) };
    for view in corpus.views(&[0])? {
        let batch = reader.sequence(&view, 0..view.len(0))?;
        assert!(batch.frames.continuous.iter().all(|number| number.is_finite()));
        let mut raw = vec![0.0; view.raw_width()];
        view.raw(0, &mut raw)?;
        if embedding.game().has_mirror() {
            let before = raw.clone();
            embedding.mirror(&mut raw)?;
            embedding.mirror(&mut raw)?;
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
            assert!(raw.iter().zip(&before).all(close), "mirroring twice changes the row");
        }
    }
    Ok(())
}
