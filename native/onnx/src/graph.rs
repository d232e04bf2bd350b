//! A graph of ONNX nodes over named values.

use std::collections::BTreeMap;

use sconce_nn::checkpoint::bytes;
use sconce_ops::weights::Coded;
use sconce_tensor::memory;

use crate::proto::{self, Attribute, Dim, Message, Type};

/// The name of a value: an input, an initialiser, or an output of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value(String);

impl Value {
    /// A missing optional input.
    pub(crate) fn none() -> Self {
        Value(String::new())
    }
}

/// An input or an output of a model.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Type of the elements: `f32` or `i64`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Dimensions.
    pub shape: Vec<Dim>,
}

impl Port {
    fn new(name: &str, kind: Type, shape: &[Dim]) -> Self {
        let kind = match kind {
            Type::F32 => "f32",
            Type::F64 => "f64",
            Type::I64 => "i64",
            Type::I8 => "i8",
        };
        Port { name: name.into(), kind, shape: shape.to_vec() }
    }
}

/// Nodes in the order in which they run, with the tensors that they read.
#[derive(Default)]
pub(crate) struct Graph {
    /// Precedes the names of this graph's values. Values of a subgraph may not have names of the graph around it.
    prefix: String,
    nodes: Vec<Message>,
    initialisers: BTreeMap<String, Message>,
    inputs: Vec<(Port, Message)>,
    outputs: Vec<(Port, Message)>,
    count: usize,
}

impl Graph {
    /// A graph inside a node of another graph.
    pub(crate) fn subgraph(prefix: &str) -> Self {
        Graph { prefix: prefix.into(), ..Graph::default() }
    }

    fn values<const N: usize>(&mut self, op: &str) -> [Value; N] {
        let name = self.fresh(op);
        std::array::from_fn(|i| Value(if N == 1 { name.clone() } else { format!("{name}.{i}") }))
    }

    /// A name that no value has.
    pub(crate) fn fresh(&mut self, name: &str) -> String {
        self.count += 1;
        format!("{}{name}_{}", self.prefix, self.count)
    }

    /// Adds a node with one output.
    pub(crate) fn op(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
    ) -> Value {
        let [value] = self.op_of(op, inputs, attributes);
        value
    }

    /// Adds a node with N outputs.
    pub(crate) fn op_of<const N: usize>(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
    ) -> [Value; N] {
        let outputs = self.values(op);
        let names = outputs.each_ref().map(|Value(name)| name.clone());
        self.push(op, inputs, &names, attributes);
        outputs
    }

    fn push(
        &mut self,
        op: &str,
        inputs: &[&Value],
        outputs: &[String],
        attributes: &[(&str, Attribute)],
    ) {
        let inputs: Vec<&str> = inputs.iter().map(|Value(name)| name.as_str()).collect();
        let name = outputs.first().map_or("", String::as_str);
        self.nodes.push(proto::node(op, name, &inputs, outputs, attributes));
    }

    /// Adds a tensor of the file; a name that exists is the same tensor.
    fn initialiser(&mut self, name: String, tensor: impl FnOnce(&str) -> Message) -> Value {
        if !self.initialisers.contains_key(&name) {
            let tensor = tensor(&name);
            self.initialisers.insert(name.clone(), tensor);
        }
        Value(name)
    }

    /// A tensor of f32 with this name.
    pub(crate) fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> Value {
        let tensor = |name: &str| proto::tensor(name, Type::F32, dims, &bytes(values));
        self.initialiser(name.into(), tensor)
    }

    /// A tensor of f64 with this name.
    pub(crate) fn doubles(&mut self, name: &str, dims: &[usize], values: &[f64]) -> Value {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initialiser(name.into(), |name| proto::tensor(name, Type::F64, dims, &elements))
    }

    /// A matrix of codes with this name, `[outputs, inputs]` or `[outputs groups, inputs of a group]`, whose rows have the
    /// scales `NAME.scale`.
    pub(crate) fn codes(&mut self, name: &str, codes: &Coded) -> Value {
        let (outputs, inputs, rows) = (codes.outputs(), codes.inputs(), codes.scales().len());
        let dims = [rows, outputs * inputs / rows.max(1)];
        let elements: Vec<u8> = codes.codes().iter().map(|code| code.cast_unsigned()).collect();
        let own =
            self.initialiser(name.into(), |name| proto::tensor(name, Type::I8, &dims, &elements));
        let scales = self.floats(&format!("{name}.scale"), &[rows], codes.scales());
        let weight = self.op("DequantizeLinear", &[&own, &scales], &[("axis", Attribute::Int(0))]);
        if rows == outputs {
            return weight;
        }
        self.reshape(&weight, &[outputs as i64, inputs as i64])
    }

    /// A scalar constant.
    pub(crate) fn number(&mut self, value: f32) -> Value {
        self.floats(&format!("f32 {value}"), &[], &[value])
    }

    /// A vector of integers.
    pub(crate) fn ints(&mut self, values: &[i64]) -> Value {
        self.integers(format!("i64 {values:?}"), &[values.len()], values)
    }

    /// A scalar integer.
    pub(crate) fn integer(&mut self, value: i64) -> Value {
        self.integers(format!("i64 {value}"), &[], &[value])
    }

    /// The integers `0..count`.
    pub(crate) fn range(&mut self, count: usize) -> Value {
        let values: Vec<i64> = (0..count as i64).collect();
        self.integers(format!("i64 0..{count}"), &[count], &values)
    }

    fn integers(&mut self, name: String, dims: &[usize], values: &[i64]) -> Value {
        let elements = || values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        self.initialiser(name, |name| proto::tensor(name, Type::I64, dims, &elements()))
    }

    /// Names of the tensors of the file.
    pub(crate) fn has_initialiser(&self, name: &str) -> bool {
        self.initialisers.contains_key(name)
    }

    pub(crate) fn input(&mut self, name: &str, kind: Type, shape: &[Dim]) -> Value {
        let port = Port::new(name, kind, shape);
        self.inputs.push((port, proto::value_info(name, kind, shape)));
        Value(name.into())
    }

    /// An output with this name that has the value.
    pub(crate) fn output(&mut self, name: &str, value: &Value, kind: Type, shape: &[Dim]) {
        self.push("Identity", &[value], &[name.into()], &[]);
        let port = Port::new(name, kind, shape);
        self.outputs.push((port, proto::value_info(name, kind, shape)));
    }

    /// The inputs and the outputs.
    pub(crate) fn ports(&self) -> [Vec<Port>; 2] {
        let ports = |all: &[(Port, Message)]| all.iter().map(|(port, _)| port.clone()).collect();
        [ports(&self.inputs), ports(&self.outputs)]
    }

    pub(crate) fn into_message(self, name: &str) -> Message {
        let initialisers: Vec<Message> = self.initialisers.into_values().collect();
        let infos = |all: Vec<(Port, Message)>| all.into_iter().map(|(_, info)| info).collect();
        let (inputs, outputs): (Vec<Message>, Vec<Message>) =
            (infos(self.inputs), infos(self.outputs));
        proto::graph(name, &self.nodes, &initialisers, &inputs, &outputs)
    }
}

/// Ops that layers share.
impl Graph {
    pub(crate) fn reshape(&mut self, x: &Value, shape: &[i64]) -> Value {
        let shape = self.ints(shape);
        self.op("Reshape", &[x, &shape], &[])
    }

    pub(crate) fn unsqueeze(&mut self, x: &Value, axis: i64) -> Value {
        let axes = self.ints(&[axis]);
        self.op("Unsqueeze", &[x, &axes], &[])
    }

    pub(crate) fn squeeze(&mut self, x: &Value, axis: i64) -> Value {
        let axes = self.ints(&[axis]);
        self.op("Squeeze", &[x, &axes], &[])
    }

    pub(crate) fn transpose(&mut self, x: &Value, order: &[i64]) -> Value {
        self.op("Transpose", &[x], &[("perm", Attribute::Ints(order.to_vec()))])
    }

    pub(crate) fn concat(&mut self, parts: &[&Value], axis: i64) -> Value {
        match parts {
            [one] => (*one).clone(),
            _ => self.op("Concat", parts, &[("axis", Attribute::Int(axis))]),
        }
    }

    /// N parts of equal sizes.
    pub(crate) fn split<const N: usize>(&mut self, x: &Value, axis: i64) -> [Value; N] {
        self.op_of("Split", &[x], &[("axis", Attribute::Int(axis))])
    }

    /// Columns `from..to` of the last dimension.
    pub(crate) fn columns(&mut self, x: &Value, from: usize, to: usize) -> Value {
        let (from, to, axis) =
            (self.ints(&[from as i64]), self.ints(&[to as i64]), self.ints(&[-1]));
        self.op("Slice", &[x, &from, &to, &axis], &[])
    }

    pub(crate) fn cast(&mut self, x: &Value, to: Type) -> Value {
        self.op("Cast", &[x], &[("to", Attribute::Type(to))])
    }

    pub(crate) fn add(&mut self, x: &Value, y: &Value) -> Value {
        self.op("Add", &[x, y], &[])
    }

    pub(crate) fn sub(&mut self, x: &Value, y: &Value) -> Value {
        self.op("Sub", &[x, y], &[])
    }

    pub(crate) fn mul(&mut self, x: &Value, y: &Value) -> Value {
        self.op("Mul", &[x, y], &[])
    }

    /// Rows or elements of `x` along an axis.
    pub(crate) fn gather(&mut self, x: &Value, indices: &Value, axis: i64) -> Value {
        self.op("Gather", &[x, indices], &[("axis", Attribute::Int(axis))])
    }

    /// Rows `[b, m, ..]` of `x [b, n, ..]` at the indices `[b, m]`.
    pub(crate) fn pick(&mut self, x: &Value, indices: &Value) -> Value {
        let indices = self.unsqueeze(indices, -1);
        self.op("GatherND", &[x, &indices], &[("batch_dims", Attribute::Int(1))])
    }
}

/// Bytes that a graph with these weights takes at most while it is written.
pub(crate) fn check_room(numbers: usize) -> sconce_tensor::Result<()> {
    // The tensors, and the graph that contains them.
    memory::room("a model in ONNX", 2 * 4 * numbers as u64)
}
