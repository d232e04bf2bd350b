defmodule EXLA.DeviceBuffer do
  @moduledoc false
  defstruct [:ref, :client_name, :device_id, :typespec]
end

defmodule EXLA.Backend do
  # Stands in for EXLA, with tensors of f32 in memory of a card. Only what a pass of Sconce needs is there.
  @moduledoc false
  defstruct [:buffer]

  alias Sconce.Native

  def init(opts), do: Keyword.validate!(opts, [:client, :device_id])

  def constant(out, number, opts),
    do: from_binary(out, Nx.to_binary(Nx.tensor(number, type: out.type)), opts)

  def from_binary(%{type: {:f, 32}} = out, data, opts) do
    [client: :cuda, device_id: id] = Enum.sort(opts)
    {:ok, block} = Native.probe_block("cuda:#{id}", data)
    buffer = %EXLA.DeviceBuffer{client_name: :cuda, device_id: id, ref: block}
    %{out | data: %__MODULE__{buffer: buffer}}
  end

  def to_binary(%{data: %{buffer: %{ref: block}}, type: {_, bits}}, limit) do
    {:ok, data} = Native.probe_block_read(block)
    binary_part(data, 0, limit * div(bits, 8))
  end

  def broadcast(out, tensor, shape, _axes) do
    data = to_binary(tensor, 1)
    opts = [client: :cuda, device_id: tensor.data.buffer.device_id]
    from_binary(out, String.duplicate(data, Tuple.product(shape)), opts)
  end

  def slice(out, tensor, starts, lengths, strides) do
    here = Nx.backend_copy(tensor, Nx.BinaryBackend)
    Nx.BinaryBackend.slice(out, here, starts, lengths, strides)
  end

  def backend_copy(tensor, Nx.BinaryBackend, _opts),
    do: Nx.BinaryBackend.from_binary(tensor, to_binary(tensor, Nx.size(tensor)), [])

  def to_pointer(%{data: %{buffer: %{ref: block}}}, opts) do
    [mode: :local] = Keyword.validate!(opts, mode: :local)
    {:ok, {address, bytes}} = Native.probe_block_place(block)
    {:ok, %Nx.Pointer{kind: :local, address: address, data_size: bytes}}
  end
end

defmodule HostNx.CardTest do
  # Run by test/sconce/nx_test.exs with a library of CUDA and `fixtures` (SCONCE_NATIVE_PATH) on the emulated card.
  use ExUnit.Case, async: false

  alias Sconce.{Native, Policy}

  @moduletag :gpu

  @card {EXLA.Backend, client: :cuda, device_id: 0}

  setup_all do
    heads = [fire: {:bernoulli, 2}, move: {:categorical, 3}]
    spec = [embedding: {:vector, 4}, heads: heads, hidden_size: 8]
    {:ok, policy} = Policy.init(spec, seed: 3, device: :cuda)
    {:ok, policy: policy}
  end

  defp frames(shape, opts \\ []), do: Nx.divide(Nx.iota(shape, opts), 50)

  test "frames and logits stay on the card through Nx itself", %{policy: policy} do
    windows = frames({3, 5, 4}, names: [:games, :frames, nil])
    {:ok, plain} = Policy.forward(policy, windows)

    for as <- [:auto, :card], sequences? <- [true, false] do
      opts = [as: as, return_sequences: sequences?]
      {:ok, out} = Policy.forward(policy, Nx.backend_copy(windows, @card), opts)
      assert out.logits.data.__struct__ == EXLA.Backend
      {:ok, want} = Policy.forward(policy, windows, return_sequences: sequences?)
      assert Nx.names(out.logits) == Nx.names(want.logits)
      assert Nx.shape(out.logits) == Nx.shape(want.logits)
      assert Nx.to_binary(out.logits) == Nx.to_binary(want.logits)
      assert Nx.to_binary(out.state) == Nx.to_binary(plain.state)
    end

    {:ok, one} = Policy.step(policy, Nx.backend_copy(windows[0][0], @card), as: :card)
    {:ok, want} = Policy.step(policy, windows[0][0])
    assert Nx.to_binary(one.logits) == Nx.to_binary(want.logits)
  end

  test "tensors of Nx's own backend are refused by name", %{policy: policy} do
    {:error, error} = Policy.forward(policy, frames({1, 2, 4}), as: :card)
    expected = "expected a tensor of EXLA.Backend on cuda:0, got one of Nx.BinaryBackend"
    assert Exception.message(error) =~ expected
    vectorized = frames({2, 3, 4}) |> Nx.backend_copy(@card) |> Nx.vectorize(:games)
    {:error, error} = Policy.forward(policy, vectorized, as: :card)
    assert Exception.message(error) =~ "without vectorized axes"
  end

  test "nothing stays on the card", %{policy: policy} do
    Task.await(
      Task.async(fn -> Policy.forward(policy, Nx.backend_copy(frames({1, 2, 4}), @card)) end)
    )

    :erlang.garbage_collect()
    for _try <- 1..100, Native.probe_block_count() > 0, do: Process.sleep(20)
    assert Native.probe_block_count() == 0
  end
end
