//! minGRU and minLSTM: linear recurrences `h = a h + u`, whose a and u depend only on the input.

use sconce_nn::backbone::{MinCell, MinRnn};
use sconce_tensor::Result;

use super::dense::linear;
use crate::graph::{Graph, Value};
use crate::net::{Form, Net};
use crate::proto::{Attribute, Dim, Type};

/// A cell, as [`MinRnn`]. Part of the state: `h`.
pub(crate) fn min_rnn(
    net: &mut Net,
    path: &str,
    cell: MinCell,
    x: &Value,
    width: usize,
) -> Result<Value> {
    let (keep, add) = gates(net, path, cell, x, width)?;
    let name = format!("{path}.h");
    let state = net.state(&name, &[width]);
    let (y, last) = match (net.form(), state) {
        (Form::Step, Some(h)) => {
            let kept = net.graph.mul(&keep, &h);
            let h = net.graph.add(&kept, &add);
            (h.clone(), h)
        }
        (_, state) => {
            let state = state.unwrap_or_else(|| zeros(net, width));
            let [keep, add] = [keep, add].map(|of| net.framed(&of, width));
            scan(net, &state, &keep, &add, width)
        }
    };
    net.set_state(&name, last, &[width]);
    Ok(net.rows(&y, width))
}

/// The factor of the state and the addend, as rows.
fn gates(
    net: &mut Net,
    path: &str,
    cell: MinCell,
    x: &Value,
    width: usize,
) -> Result<(Value, Value)> {
    let mut linear = |name: &str| linear(net, &format!("{path}.{name}"), x, [width, width]);
    match cell {
        MinCell::Gru => {
            let (z, h) = (linear("linear_z")?, linear("linear_h")?);
            let graph = &mut net.graph;
            let (z, one) = (graph.op("Sigmoid", &[&z], &[]), graph.number(1.0));
            Ok((graph.sub(&one, &z), graph.mul(&z, &h)))
        }
        MinCell::Lstm => {
            let gates = [linear("linear_f")?, linear("linear_i")?];
            let h = linear("linear_h")?;
            let graph = &mut net.graph;
            let [f, i] = gates.map(|gate| graph.op("Sigmoid", &[&gate], &[]));
            let eps = graph.number(MinRnn::EPS);
            let sum = graph.add(&f, &i);
            let sum = graph.add(&sum, &eps);
            let [f, i] = [f, i].map(|gate| graph.op("Div", &[&gate, &sum], &[]));
            Ok((f, graph.mul(&i, &h)))
        }
    }
}

/// Zeros `[b, width]`.
fn zeros(net: &mut Net, width: usize) -> Value {
    let (batch, width) = (net.batch(), net.graph.ints(&[width as i64]));
    let shape = net.graph.concat(&[&batch, &width], 0);
    net.graph.op("ConstantOfShape", &[&shape], &[])
}

/// Outputs `[b, t, width]` of all frames and the last one, from `keep` and `add [b, t, width]`.
fn scan(net: &mut Net, state: &Value, keep: &Value, add: &Value, width: usize) -> (Value, Value) {
    let shape = [Dim::Any("batch"), Dim::Size(width)];
    // Each loop of a model has names of its own.
    let prefix = net.graph.fresh("frame");
    let mut body = Graph::subgraph(&format!("{prefix}."));
    let names = ["h", "keep", "add", "next", "y"].map(|name| format!("{prefix}.{name}"));
    let mut input = |name: &String| body.input(name, Type::F32, &shape);
    let (h, a, u) = (input(&names[0]), input(&names[1]), input(&names[2]));
    let kept = body.mul(&a, &h);
    let next = body.add(&kept, &u);
    body.output(&names[3], &next, Type::F32, &shape);
    body.output(&names[4], &next, Type::F32, &shape);
    let attributes = [
        ("body", Attribute::Graph(body.into_message(&prefix))),
        ("num_scan_inputs", Attribute::Int(2)),
        ("scan_input_axes", Attribute::Ints(vec![1, 1])),
        ("scan_output_axes", Attribute::Ints(vec![1])),
    ];
    let [last, y] = net.graph.op_of("Scan", &[state, keep, add], &attributes);
    (y, last)
}
