defmodule Sconce.Onnx do
  alias Sconce.{Error, Native, Options, Policy}
  alias Sconce.Native.Call

  @export [
    form: [
      type: {:in, [:step, :window]},
      default: :step,
      doc:
        "`:step`, one frame of each game with the state, or `:window`, several frames of each game."
    ],
    state: [
      type: :boolean,
      default: false,
      doc:
        "Whether a window takes the state before its first frame and returns the state after its last one. " <>
          "Otherwise the games begin with the first frame. A step always has the state."
    ],
    weights: [
      type: {:in, [:stored, :f32, :int8]},
      default: :stored,
      doc:
        "Format of the matrices in the file. `:stored` writes the codes of a policy that has them (see " <>
          "`Sconce.Compress.Policy`), one in a byte, and f32 otherwise. `:int8` also rounds other matrices with at " <>
          "least 32 inputs as a session does. Products are in 32-bit floats, so that the model is not faster."
    ]
  ]

  @moduledoc """
  Exports policies to [ONNX](https://onnx.ai), which runtimes in other languages, browsers and phones execute.

      iex> path = Path.join(System.tmp_dir!(), "policy-#{System.unique_integer([:positive])}.onnx")
      iex> spec = [embedding: {:vector, 2}, backbone: :gru, hidden_size: 8, num_layers: 1, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, model} = Sconce.Onnx.export(policy, path)
      iex> for input <- model.inputs, do: {input.name, input.type, input.shape}
      [{"continuous", :f32, {:batch, 2}}, {"state.backbone.h_l0", :f32, {:batch, 8}}]
      iex> for output <- model.outputs, do: {output.name, output.shape}
      [{"logits", {:batch, 1}}, {"next_state.backbone.h_l0", {:batch, 8}}]
      iex> File.rm!(path)
      :ok

  The file has opset 17 and version 8 of the format, and only standard ops. Its initialisers have the names, shapes and
  values of the checkpoint's weights (`Sconce.Policy.weights/1`), unless `:weights` rounds them. The metadata `sconce.spec` holds the Spec in JSON.
  In ONNX Runtime, logits and states are within 1e-5 of the largest value of `Sconce.Policy.forward/3`.

  ## Backbones

  `:mlp`, `:lstm`, `:gru`, `:sliding_window`, `:causal_transformer`, `:min_gru`, `:min_lstm`, `:lstm_hybrid`, `:res_lstm`
  and `:tx_like`. All heads, embeddings, priors and critics can be exported.

  ## Inputs

  `batch` and `time` are any sizes. A model has those of the inputs that its policy reads:

  | input | shape of a step | shape of a window | contents |
  |---|---|---|---|
  | `continuous` | `{batch, n}` | `{batch, time, n}` | the continuous features of `Sconce.Embedding.embed/2` |
  | `ids` | `{batch, n}` | `{batch, time, n}` | its ids, as 64-bit integers |
  | `labels` | `{batch, num_labels}` | `{batch, time, num_labels}` | the actions that autoregressive heads condition on |
  | `previous` | `{batch, num_labels}` | `{batch, time, num_labels}` | the previous actions, which a prior reads |
  | `state.*` | `{batch, ...}` | `{batch, ...}` | a part of the state before the first frame |

  All but `ids` are 32-bit floats. The model normalises frames itself: `continuous` takes the plain numbers of a policy with
  `embedding: {:normalised, ...}`. Infinity in `previous` means that there was no previous action. A policy with a queue
  of inputs reads them in `continuous`.

  ## Outputs

  `logits`, `{batch, num_logits}` or `{batch, time, num_logits}`, and for each `state.NAME` a `next_state.NAME` of the same
  shape, which is the state of the next call. A game begins with zeros. The parts, one after the other, are the state of
  `Sconce.Policy.forward/3`.

  The logits of an autoregressive head depend on the `labels` of the heads before it, and on no others. To choose an
  action, run a step once for each head, fill in each choice, and keep the state of one of the runs: it does not depend
  on `labels`.
  """

  @typedoc "An input or an output. The shape has sizes, and `:batch` or `:time` for any size."
  @type port_info :: %{
          name: String.t(),
          type: :f32 | :i64,
          shape: tuple
        }

  @doc """
  Writes a policy as a model in ONNX, and returns its inputs and outputs. The file is replaced atomically.

  #{Options.docs(@export)}

      iex> path = Path.join(System.tmp_dir!(), "policy-#{System.unique_integer([:positive])}.onnx")
      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, model} = Sconce.Onnx.export(policy, path, form: :window)
      iex> {hd(model.inputs).shape, hd(model.outputs).shape}
      {{:batch, :time, 2}, {:batch, :time, 1}}
      iex> File.rm!(path)
      :ok

  Kinds of error:

    * `:mismatch` - the backbone is not one of the supported ones, which `expected` lists; or the path is a folder or a
      device;
    * `:not_found` - the folder does not exist;
    * `:io` - the path cannot be written;
    * `:out_of_memory` - too little memory is available, or the model would have 2 GiB or more.
  """
  @spec export(Policy.t(), Path.t(), keyword) ::
          {:ok, %{inputs: [port_info], outputs: [port_info]}} | {:error, Error.t()}
  def export(%Policy{ref: ref}, path, opts \\ []) do
    [form: form, state: state, weights: weights] = Options.validate!(opts, @export)
    how = {form == :window, state, weights}
    path = Options.path!(path)

    with {:ok, model} <- Call.run(&Native.onnx_export(ref, &1, path, how)),
         do: {:ok, %{inputs: ports(model.inputs), outputs: ports(model.outputs)}}
  end

  @doc false
  def options, do: @export

  defp ports(ports) do
    for %{name: name, type: type, shape: shape} <- ports,
        do: %{name: name, type: type(type), shape: shape |> Enum.map(&dim/1) |> List.to_tuple()}
  end

  defp type("f32"), do: :f32
  defp type("i64"), do: :i64

  defp dim("batch"), do: :batch
  defp dim("time"), do: :time
  defp dim(size), do: size
end
