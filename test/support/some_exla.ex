defmodule Sconce.Test.SomeEXLA do
  @moduledoc """
  The parts of Nx and EXLA that Sconce calls for tensors on a card, for tests that no other test may run beside. The
  tensors of this `EXLA.Backend` lie in memory of the card (`probe_block`). As with EXLA, their numbers are written by
  work in a stream of their own, which has not run when a tensor is made, and memory is freed with the last reference.
  """

  alias Sconce.Native
  alias Sconce.Test.SomeEXLA

  @doc "Defines the modules while `fun` runs. `wrap` turns an `Nx.Pointer` into the answer of `Nx.to_pointer/2`."
  def with_exla(fun, wrap \\ &Function.identity/1) do
    :persistent_term.put(__MODULE__, wrap)
    modules = modules()
    for {name, body} <- modules, do: Module.create(name, body, Macro.Env.location(__ENV__))

    try do
      fun.()
    after
      for {name, _body} <- modules, do: :code.delete(name) && :code.purge(name)
      :persistent_term.erase(__MODULE__)
    end
  end

  defp modules do
    [
      {Nx.Tensor, quote(do: defstruct([:data, :type, :shape, names: []]))},
      {Nx.Pointer, quote(do: defstruct([:address, :kind, :data_size, :handle]))},
      {EXLA.Backend, quote(do: defstruct([:buffer]))},
      {EXLA.DeviceBuffer, quote(do: defstruct([:ref, :client_name, :device_id, :typespec]))},
      {Nx, nx()}
    ]
  end

  defp nx do
    quote do
      def as_type(%{type: type} = tensor, type), do: tensor
      def from_binary(data, type), do: struct(Nx.Tensor, data: data, type: type)
      def reshape(tensor, shape), do: %{tensor | shape: shape}
      def reshape(tensor, shape, names: names), do: %{tensor | shape: shape, names: names}
      def to_binary(tensor), do: SomeEXLA.to_binary(tensor)
      def slice(tensor, first, sizes), do: SomeEXLA.slice(tensor, first, sizes)

      def tensor(number, type: type, backend: {EXLA.Backend, opts}),
        do: struct(Nx.Tensor, data: {number, opts}, type: type, shape: {})

      def broadcast(%{data: {number, opts}}, shape, names: names),
        do: SomeEXLA.filled(number, opts, shape, names)

      def to_pointer(tensor, mode: :local), do: SomeEXLA.to_pointer(tensor)
    end
  end

  @doc "A tensor of f32 in memory of EXLA on a card."
  def tensor(data, shape, opts \\ []) do
    id = Keyword.get(opts, :device_id, 0)
    {:ok, block} = Native.probe_block("cuda:#{id}", data)
    buffer = %{client_name: :cuda, device_id: id, ref: block}
    buffer = struct(EXLA.DeviceBuffer, Map.merge(buffer, Map.new(opts)))
    names = List.duplicate(nil, tuple_size(shape))
    backend = struct(EXLA.Backend, buffer: buffer)
    struct(Nx.Tensor, data: backend, type: {:f, 32}, shape: shape, names: names)
  end

  @doc false
  def to_binary(%{data: %{__struct__: EXLA.Backend, buffer: %{ref: block}}}) do
    {:ok, data} = Native.probe_block_read(block)
    data
  end

  def to_binary(%{data: data}) when is_binary(data), do: data

  @doc false
  def slice(%{shape: shape} = tensor, first, sizes) do
    true = first == List.duplicate(0, tuple_size(shape))
    true = sizes == List.duplicate(1, tuple_size(shape))
    struct(Nx.Tensor, data: binary_part(to_binary(tensor), 0, 4), type: {:f, 32}, shape: {1})
  end

  @doc false
  def filled(number, [client: :cuda, device_id: id], shape, names) do
    data = String.duplicate(<<number::float-32-little>>, Tuple.product(shape))
    %{tensor(data, shape, device_id: id) | names: names}
  end

  @doc false
  def to_pointer(%{data: %{buffer: %{ref: block}}}) do
    {:ok, {address, bytes}} = Native.probe_block_place(block)
    fields = [kind: :local, address: address, data_size: bytes]
    :persistent_term.get(__MODULE__).(struct(Nx.Pointer, fields))
  end

  @doc "The blocks of these tensors that are alive, once this process has no garbage."
  def blocks do
    :erlang.garbage_collect()
    Native.probe_block_count()
  end
end
