//! Stacks of LSTM and GRU layers.

use sconce_nn::backbone::Cell;
use sconce_nn::spec::RecurrentConfig;
use sconce_tensor::{Error, Result};

use super::dense::layer_norm_with;
use crate::graph::Value;
use crate::net::Net;
use crate::proto::Attribute;

/// `norm(x) -> [cell -> norm] x layers`, as [`sconce_nn::backbone::Recurrent`].
///
/// # Errors
/// `Mismatch` for a stored initial state: a model's state begins as zero.
pub(crate) fn recurrent(
    net: &mut Net,
    path: &str,
    cell: Cell,
    config: &RecurrentConfig,
    x: &Value,
    input: usize,
) -> Result<Value> {
    if config.initial_state {
        let what = "initial state of a model in ONNX";
        return Err(Error::mismatch(what, "zero", "one that is stored"));
    }
    let (hidden, eps) = (config.hidden_size, config.norm_eps.0);
    let x = match config.input_norm {
        true => layer_norm_with(net, &format!("{path}.input_norm"), x, input, eps)?,
        false => x.clone(),
    };
    let mut x = net.by_time(&x, input);
    for i in 0..config.num_layers {
        let width = if i == 0 { input } else { hidden };
        x = layer(net, path, cell, i, &x, [width, hidden])?;
        if config.layer_norm {
            x = layer_norm_with(net, &format!("{path}.norms.{i}"), &x, hidden, eps)?;
        }
    }
    Ok(net.by_game(&x, hidden))
}

/// Layer `i` over `x [t, b, width]`. Parts of the state: `h_lI`, and `c_lI` of an LSTM.
///
/// The file has the weights of the checkpoint. ONNX orders gates differently, so that nodes move their rows; a runtime
/// does this once, when it loads the model.
fn layer(
    net: &mut Net,
    path: &str,
    cell: Cell,
    i: usize,
    x: &Value,
    [width, hidden]: [usize; 2],
) -> Result<Value> {
    let gates = match cell {
        Cell::Gru => 3,
        Cell::Lstm => 4,
    };
    let rows = gates * hidden;
    let name = |name: &str| format!("{path}.{name}_l{i}");
    let w = net.matrix(&name("weight_ih"), [rows, width])?;
    let r = net.matrix(&name("weight_hh"), [rows, hidden])?;
    let biases = [net.weight(&name("bias_ih"), &[rows])?, net.weight(&name("bias_hh"), &[rows])?];
    let [w, r] = [w, r].map(|weight| reordered(net, cell, &weight));
    let biases = biases.map(|bias| reordered(net, cell, &bias));
    let bias = net.graph.concat(&biases.each_ref(), 0);
    let [w, r, bias] = [&w, &r, &bias].map(|of| net.graph.unsqueeze(of, 0));
    let names: &[&str] = if cell == Cell::Gru { &["h"] } else { &["h", "c"] };
    let mut inputs = vec![x.clone(), w, r, bias, Value::none()];
    for name in names {
        let state = net.state(&format!("{path}.{name}_l{i}"), &[hidden]);
        // Without a state the initial values are zeros.
        let state = state.map(|state| net.graph.unsqueeze(&state, 0));
        inputs.push(state.unwrap_or_else(Value::none));
    }
    let size = ("hidden_size", Attribute::Int(hidden as i64));
    let inputs: Vec<&Value> = inputs.iter().collect();
    let (y, last) = match cell {
        Cell::Gru => {
            // Of the two forms of a GRU, the one that multiplies the reset gate by `R h + b`, as cuDNN has it.
            let attributes = [size, ("linear_before_reset", Attribute::Int(1))];
            let [y, h] = net.graph.op_of("GRU", &inputs, &attributes);
            (y, vec![h])
        }
        Cell::Lstm => {
            let [y, h, c] = net.graph.op_of("LSTM", &inputs, &[size]);
            (y, vec![h, c])
        }
    };
    for (name, last) in names.iter().zip(last) {
        let last = net.graph.squeeze(&last, 0);
        net.set_state(&format!("{path}.{name}_l{i}"), last, &[hidden]);
    }
    Ok(net.graph.squeeze(&y, 1))
}

/// Rows of gates in the order of ONNX: z, r, n of a GRU, and i, o, f, g of an LSTM. PyTorch orders them r, z, n and i, f,
/// g, o.
fn reordered(net: &mut Net, cell: Cell, weight: &Value) -> Value {
    match cell {
        Cell::Gru => {
            let [r, z, n] = net.graph.split(weight, 0);
            net.graph.concat(&[&z, &r, &n], 0)
        }
        Cell::Lstm => {
            let [i, f, g, o] = net.graph.split(weight, 0);
            net.graph.concat(&[&i, &o, &f, &g], 0)
        }
    }
}
