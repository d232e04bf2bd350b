//! Writes a game to disk.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::TensorView;
use sconce_tensor::digest::sha256;
use sconce_tensor::fs::write_atomic;
use sconce_tensor::{Error, Result};

use super::{Entry, KEY, SEGMENTS, name, packed, shape, widths};
use crate::column::{Column, Dtype};
use crate::game::GameInfo;
use crate::schema::{Schema, VERSION};

/// Writes a game's shard. Returns the metadata with the file name, size and digest filled in. The digest is that of the
/// columns, compressed or not.
pub(crate) fn write(
    corpus: &Path,
    schema: &Schema,
    mut game: GameInfo,
    columns: &[Column],
    compress: bool,
) -> Result<GameInfo> {
    game.file = name(&game.digest, compress);
    let path = corpus.join(&game.file);
    let data: Vec<Vec<u8>> = columns.iter().map(Column::bytes).collect();
    game.contents = sha256(&data);
    let specs = schema.columns();
    let named =
        |error: safetensors::SafeTensorError| Error::corrupt(path.display().to_string(), error);
    let (packed, segments) = match compress {
        true => {
            let (packed, segments) = packed::pack(&data, &widths(&specs), game.frames);
            (Some(packed), segments)
        }
        false => (None, vec![]),
    };
    let tensors = match &packed {
        Some(_) => {
            let view = TensorView::new(Dtype::U8.tensor(), vec![segments.len()], &segments);
            vec![(SEGMENTS, view.map_err(named)?)]
        }
        None => specs
            .iter()
            .zip(&data)
            .map(|(spec, bytes)| {
                TensorView::new(spec.dtype.tensor(), shape(spec, game.frames), bytes)
                    .map(|view| (spec.name.as_str(), view))
            })
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(named)?,
    };
    let entry = Entry { version: VERSION, schema: schema.clone(), game: game.clone(), packed };
    let header =
        serde_json::to_string(&entry).map_err(|e| Error::corrupt(path.display().to_string(), e))?;
    let bytes = safetensors::serialize(tensors, Some(HashMap::from([(KEY.to_owned(), header)])))
        .map_err(named)?;
    write_atomic(&path, |file| file.write_all(&bytes))?;
    Ok(GameInfo { bytes: bytes.len() as u64, ..game })
}
