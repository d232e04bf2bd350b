//! Messages of ONNX in the wire format of Protocol Buffers.
//!
//! The numbers of the fields are those of `onnx.proto3`. A model needs a dozen small messages, so they are written here
//! and no compiler of protocol buffers is needed.

/// Version of the format of files (`IR_VERSION` of ONNX 1.12).
pub(crate) const IR_VERSION: i64 = 8;
/// Version of the operators. LayerNormalization exists since this version.
pub(crate) const OPSET: i64 = 17;

/// Wire types of fields.
const VARINT: u8 = 0;
const LENGTH: u8 = 2;
const FIXED_32: u8 = 5;

/// A message, encoded field by field.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u8, wire: u8) {
        self.varint(u64::from(field) << 3 | u64::from(wire));
    }

    /// Adds an integer. A negative one takes ten bytes, as in every encoder.
    pub(crate) fn int(mut self, field: u8, value: i64) -> Self {
        self.key(field, VARINT);
        self.varint(value as u64);
        self
    }

    pub(crate) fn float(mut self, field: u8, value: f32) -> Self {
        self.key(field, FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, field: u8, value: &[u8]) -> Self {
        self.key(field, LENGTH);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn text(self, field: u8, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub(crate) fn message(self, field: u8, value: &Message) -> Self {
        self.bytes(field, &value.0)
    }

    /// Adds a field that occurs once for each value.
    fn each<T>(
        self,
        values: impl IntoIterator<Item = T>,
        add: impl Fn(Self, T) -> Self,
    ) -> Message {
        values.into_iter().fold(self, add)
    }
}

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    F32,
    F64,
    I64,
    I8,
}

impl Type {
    /// The number of the type in `TensorProto.DataType`.
    fn number(self) -> i64 {
        match self {
            Type::F32 => 1,
            Type::I8 => 3,
            Type::I64 => 7,
            Type::F64 => 11,
        }
    }
}

/// An attribute of a node.
#[derive(Debug, Clone)]
pub(crate) enum Attribute {
    Int(i64),
    Float(f32),
    Ints(Vec<i64>),
    /// A type of elements, as `Cast` takes it.
    Type(Type),
    Graph(Message),
}

impl Attribute {
    /// `AttributeProto`
    fn message(&self, name: &str) -> Message {
        const KIND: u8 = 20;
        let of = Message::default().text(1, name);
        match self {
            Attribute::Float(value) => of.float(2, *value).int(KIND, 1),
            Attribute::Int(value) => of.int(3, *value).int(KIND, 2),
            Attribute::Type(value) => of.int(3, value.number()).int(KIND, 2),
            Attribute::Graph(graph) => of.message(6, graph).int(KIND, 5),
            Attribute::Ints(values) => of.each(values, |of, value| of.int(8, *value)).int(KIND, 7),
        }
    }
}

/// `NodeProto`. An empty name among the inputs or the outputs leaves an optional one out.
pub(crate) fn node(
    op: &str,
    name: &str,
    inputs: &[&str],
    outputs: &[String],
    attributes: &[(&str, Attribute)],
) -> Message {
    Message::default()
        .each(inputs, |of, input| of.text(1, input))
        .each(outputs, |of, output| of.text(2, output))
        .text(3, name)
        .text(4, op)
        .each(attributes, |of, (name, value)| of.message(5, &value.message(name)))
}

/// `TensorProto`, with its elements in little-endian order.
pub(crate) fn tensor(name: &str, kind: Type, dims: &[usize], elements: &[u8]) -> Message {
    Message::default()
        .each(dims, |of, dim| of.int(1, *dim as i64))
        .int(2, kind.number())
        .text(8, name)
        .bytes(9, elements)
}

/// A dimension of an input or an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub enum Dim {
    /// Any size; equal names have equal sizes in one run.
    Any(&'static str),
    /// This size.
    Size(usize),
}

/// `ValueInfoProto`
pub(crate) fn value_info(name: &str, kind: Type, shape: &[Dim]) -> Message {
    let dim = |dim: &Dim| match dim {
        Dim::Size(size) => Message::default().int(1, *size as i64),
        Dim::Any(name) => Message::default().text(2, name),
    };
    let shape = Message::default().each(shape, |of, size| of.message(1, &dim(size)));
    let tensor = Message::default().int(1, kind.number()).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

/// `GraphProto`
pub(crate) fn graph(
    name: &str,
    nodes: &[Message],
    initialisers: &[Message],
    inputs: &[Message],
    outputs: &[Message],
) -> Message {
    let all = [nodes, initialisers, inputs, outputs].into_iter().flatten();
    // Each message takes its bytes, a key and a length.
    let bytes = all.map(|message| message.len() + 11).sum::<usize>() + name.len() + 11;
    Message(Vec::with_capacity(bytes))
        .each(nodes, |of, node| of.message(1, node))
        .text(2, name)
        .each(initialisers, |of, tensor| of.message(5, tensor))
        .each(inputs, |of, input| of.message(11, input))
        .each(outputs, |of, output| of.message(12, output))
}

/// `ModelProto`
pub(crate) fn model(metadata: &[(&str, &str)], graph: &Message) -> Message {
    let entry = |(key, value): &(&str, &str)| Message::default().text(1, key).text(2, value);
    let opset = Message::default().text(1, "").int(2, OPSET);
    Message::default()
        .int(1, IR_VERSION)
        .text(2, "sconce")
        .text(3, env!("CARGO_PKG_VERSION"))
        .message(8, &opset)
        .each(metadata, |of, pair| of.message(14, &entry(pair)))
        .message(7, graph)
}
