defmodule Sconce.Policy.Tensors do
  @moduledoc false
  # Nx tensors as inputs and outputs of a pass. Inputs are read where the caller is, so that a serving on another node
  # needs no Nx.

  import Sconce.Tensor, only: [is_tensor: 1]

  alias Sconce.{Error, Tensor}
  alias Sconce.Compress.Numbers
  alias Sconce.Policy.OnCard

  # The leading axes that frames may have, by their number of dimensions.
  @windows %{3 => [:batch, :time], 2 => [:time], 1 => []}
  @frames %{2 => [:batch], 1 => []}

  @typedoc "The form of the outputs: whether they are tensors, and the leading axes of the logits with their names."
  @type form :: %{as: :binaries | :nx | :card, axes: [{:batch | :time, atom}]}

  @doc "The schema of the option `:as`."
  def option do
    [
      type: {:in, [:auto, :binaries, :nx, :card]},
      default: :auto,
      doc:
        "Form of the outputs: binaries, or Nx tensors. `:auto` is tensors if the frames are one. `:card` demands that " <>
          "frames and logits are tensors of EXLA on the policy's card. See \"Tensors\" below."
    ]
  end

  @doc """
  Reads the inputs of a pass: frames of `:windows` (`[b, t, n]`, `[t, n]` or `[n]`) or single `:frames` (`[b, n]` or
  `[n]`), and the options that may be tensors. Other terms stay.
  """
  @spec read(term, :windows | :frames, keyword, Sconce.Policy.t() | nil) ::
          {:ok, term, keyword, form} | {:error, Error.t()}
  def read(frames, kind, options, policy \\ nil) do
    {as, options} = Keyword.pop(options, :as, :auto)
    if as in [:nx, :card], do: Tensor.nx!("option :as")

    with {:ok, as} <- OnCard.form(frames, as, policy),
         {:ok, frames, axes} <- frames(frames, kind, as),
         {:ok, options} <- options(options) do
      as = if as == :auto, do: if(is_struct(frames, Tensor), do: :nx, else: :binaries), else: as
      {:ok, frames, options, %{as: as, axes: axes}}
    end
  end

  defp frames(frames, kind, as) when is_tensor(frames) do
    with {:ok, tensor} <- numbers(frames, as),
         {:ok, axes} <- axes(tensor.shape, kind) do
      {:ok, batched(tensor, axes), axes |> Enum.zip(tensor.names ++ [nil, nil]) |> Enum.to_list()}
    end
  end

  defp frames(other, :windows, _as), do: {:ok, other, [batch: nil, time: nil]}
  defp frames(other, :frames, _as), do: {:ok, other, [batch: nil]}

  defp numbers(frames, :card), do: Tensor.read_there(frames, "frames", :forward)
  defp numbers(frames, _as), do: Tensor.read(frames, "frames", :forward, [:floats])

  defp axes(shape, kind) do
    axes = if kind == :windows, do: @windows, else: @frames

    case Map.fetch(axes, tuple_size(shape)) do
      {:ok, axes} -> {:ok, axes}
      :error -> {:error, Tensor.misfit("frames", expected(kind), shown(shape), :forward)}
    end
  end

  defp expected(:windows), do: "a tensor [b, t, n], [t, n] or [n]"
  defp expected(:frames), do: "a tensor [b, n] or [n]"

  # The same tensor with the shape `{b, t, n}`.
  defp batched(%{shape: shape} = tensor, axes) do
    shape =
      case {axes, Tuple.to_list(shape)} do
        {[:batch, :time], [b, t, n]} -> {b, t, n}
        {[:batch], [b, n]} -> {b, 1, n}
        {[:time], [t, n]} -> {1, t, n}
        {[], [n]} -> {1, 1, n}
      end

    %{tensor | shape: shape}
  end

  @given [labels: [], queue: [], state: [:floats], project_out: [:floats]]

  defp options(options) do
    Enum.reduce_while(@given, {:ok, options}, fn {name, how}, {:ok, options} ->
      case given(options[name], name, how) do
        {:ok, nil} -> {:cont, {:ok, options}}
        {:ok, value} -> {:cont, {:ok, Keyword.replace!(options, name, value)}}
        error -> {:halt, error}
      end
    end)
  end

  defp given(value, name, how) when is_tensor(value) do
    with {:ok, tensor} <- Tensor.read(value, to_string(name), :forward, how),
         do: {:ok, if(how == [:floats], do: tensor.data, else: tensor)}
  end

  defp given(_other, _name, _how), do: {:ok, nil}

  @doc "The bytes of labels with this shape, dimensions of one number aside, as the heads read them."
  @spec labels(Tensor.t(), Tensor.type(), tuple, String.t()) ::
          {:ok, binary} | {:error, Error.t()}
  def labels(%Tensor{} = tensor, type, shape, what) do
    if Tensor.alike?(tensor.shape, shape),
      do: converted(tensor, type, what),
      else: {:error, Tensor.misfit(what, shown(shape), shown(tensor.shape), :forward)}
  end

  defp converted(%{type: type, data: data}, type, _what), do: {:ok, data}

  # Whole numbers of any size.
  defp converted(%{type: {kind, bits}} = tensor, type, what) when kind in [:s, :u] do
    numbers =
      if kind == :s,
        do: for(<<n::signed-little-size(bits) <- tensor.data>>, do: n),
        else: for(<<n::unsigned-little-size(bits) <- tensor.data>>, do: n)

    with {:ok, %{data: data}} <- Numbers.read(numbers, type, what, :forward), do: {:ok, data}
  end

  defp converted(%{type: other}, type, what),
    do: {:error, Tensor.misfit(what, "the type #{inspect(type)}", inspect(other), :forward)}

  @doc "The outputs of a pass in this form. Without `sequences?` the logits have no axis of time."
  @spec write(Sconce.Policy.output(), form, boolean) :: Sconce.Policy.output()
  def write(out, %{as: :binaries}, _sequences?), do: out

  def write(%{logits: logits, state: state, shape: shape} = out, %{axes: axes}, sequences?) do
    {lead, names} = lead(shape, axes, sequences?)
    games = elem(shape, 0)

    logits =
      if is_binary(logits), do: Tensor.from_binary(logits, {:f, 32}, lead, names), else: logits

    %{
      out
      | logits: logits,
        shape: lead,
        state: state(state, games),
        taps: Map.new(out.taps, fn {name, tap} -> {name, tap(tap)} end)
    }
  end

  @doc "The shape of logits as a tensor, and the names of its dimensions."
  @spec lead(tuple, [{:batch | :time, atom}], boolean) :: {tuple, [atom]}
  def lead(shape, axes, sequences?) do
    full = if tuple_size(shape) == 3, do: [:batch, :time], else: [:batch]
    sizes = full |> Enum.zip(Tuple.to_list(shape)) |> Map.new()
    axes = for {axis, name} <- axes, sequences? or axis == :batch, do: {sizes[axis], name}
    {sizes, names} = Enum.unzip(axes ++ [{elem(shape, tuple_size(shape) - 1), nil}])
    {List.to_tuple(sizes), names}
  end

  # Nx has no empty tensor.
  defp state("", _games), do: nil

  defp state(data, games),
    do: Tensor.from_binary(data, {:f, 32}, {games, div(byte_size(data), 4 * games)})

  defp tap(%{data: data, shape: shape}), do: Tensor.from_binary(data, {:f, 32}, shape)

  defp shown(shape), do: "the shape #{inspect(shape)}"
end
