defmodule Sconce.Policy.OnCard do
  @moduledoc false
  # Frames and logits in memory of EXLA on the card of a policy. Nx and EXLA are optional libraries of the host, so this
  # module calls Nx by `apply/3` and matches EXLA's structs by name.
  #
  # EXLA owns both tensors. `Nx.from_pointer/5` could lend it the memory of a policy instead, but it has no hook that
  # tells when EXLA drops its tensor (EXLA registers an empty callback), so that memory could be freed under EXLA. So the
  # logits are copied on the card into a tensor that EXLA has allocated. Nothing else refers to that tensor before the
  # call returns.
  #
  # EXLA gives the address of a tensor without a wait for the work that writes it. `settle/1` waits.

  import Sconce.Tensor, only: [is_tensor: 1]

  alias Sconce.{Device, Error, Native, Options, Tensor}
  alias Sconce.Native.Call

  # EXLA gives addresses for its client of this name only, besides that of the CPU.
  @client :cuda

  @typedoc "Frames on the card of a policy: f32 numbers."
  @type frames :: {:card, struct}

  @doc """
  How the outputs of a pass over these frames are returned, for a value of the option `:as`. `:card` is a pass over
  memory of EXLA. Without a policy (a serving) there is none.
  """
  @spec form(term, :auto | :binaries | :nx | :card, map | nil) ::
          {:ok, :auto | :binaries | :nx | :card} | {:error, Error.t()}
  def form(frames, :card, policy) do
    case place(frames, policy) do
      :ok -> {:ok, :card}
      {:no, expected, got} -> {:error, Tensor.misfit("frames", expected, got, :forward)}
    end
  end

  def form(frames, :auto, %{device: %Device{kind: :cuda}} = policy) when is_tensor(frames),
    do: {:ok, if(place(frames, policy) == :ok, do: :card, else: :auto)}

  def form(_frames, as, _policy), do: {:ok, as}

  # Whether the frames lie on the card of the policy in memory of EXLA, whose address Nx can give.
  defp place(frames, %{device: %Device{kind: :cuda, index: index}}) when is_tensor(frames) do
    expected = expected(index)

    case Map.get(frames, :data) do
      %{__struct__: EXLA.Backend, buffer: buffer} ->
        case buffer do
          %{__struct__: EXLA.DeviceBuffer, client_name: @client, device_id: ^index} -> pointers()
          other -> {:no, expected, "one of EXLA.Backend#{where(other)}"}
        end

      %{__struct__: backend} ->
        {:no, expected, "one of #{inspect(backend)}"}

      other ->
        {:no, expected, "one of #{Options.shown(other)}"}
    end
  end

  defp place(frames, %{device: %Device{kind: :cuda, index: index}}),
    do: {:no, expected(index), kind(frames)}

  defp place(_frames, %{device: %Device{} = device}),
    do: {:no, "a policy on a card, for as: :card", "a policy on #{device}"}

  defp place(_frames, nil), do: {:no, "a policy on a card, for as: :card", "a serving"}

  defp expected(index), do: "a tensor of EXLA.Backend on cuda:#{inspect(index)}"

  defp pointers do
    if Tensor.nx?() and function_exported?(Nx, :to_pointer, 2),
      do: :ok,
      else: {:no, "Nx 0.8 or newer, for as: :card", "an older one without to_pointer/2"}
  end

  defp kind(frames) when is_binary(frames), do: "a binary"
  defp kind(frames) when is_list(frames), do: "a list"
  defp kind(other), do: Options.shown(other)

  defp where(%{client_name: client, device_id: id}), do: " on #{inspect(client)}:#{inspect(id)}"
  defp where(%{__struct__: kind}), do: " in #{inspect(kind)}"
  defp where(_other), do: ""

  @doc """
  Computes a pass over frames of EXLA. The logits of the answer are a new tensor of EXLA with this shape and these names.
  """
  @spec run(map, frames, {tuple, [atom]}, {tuple, tuple, map}) ::
          {:ok, {struct, binary, list}} | {:error, Error.t()}
  def run(policy, {:card, frames}, {lead, names}, {shape, given, look}) do
    %{client_name: client, device_id: id} = frames.data.buffer

    with {:ok, rows} <- asked("frames", fn -> place!(settle(frames), "frames") end),
         {:ok, out} <- asked("logits", fn -> settle(blank(lead, names, client, id)) end),
         {:ok, logits} <- asked("logits", fn -> place!(out, "logits") end),
         memory = {rows, logits, [frames.data, out.data]},
         start = &Native.policy_forward_between(policy.ref, &1, memory, shape, given, look),
         {:ok, {_no_logits, state, taps}} <- Call.run(start),
         do: {:ok, {out, state, taps}}
  end

  # A tensor that EXLA computes, so that no other tensor has its memory.
  defp blank(shape, names, client, id) do
    backend = {EXLA.Backend, client: client, device_id: id}
    zero = apply(Nx, :tensor, [0.0, [type: {:f, 32}, backend: backend]])
    apply(Nx, :broadcast, [zero, shape, [names: names]])
  end

  # Waits until EXLA has written the tensor: reads a number that EXLA computes from it. A buffer that EXLA copies to the
  # card has an address before its copy has begun, on a thread and a stream of EXLA, so a wait of CUDA would not suffice.
  defp settle(%{shape: shape} = tensor) do
    [first, one] = for n <- [0, 1], do: List.duplicate(n, tuple_size(shape))
    apply(Nx, :to_binary, [apply(Nx, :slice, [tensor, first, one])])
    tensor
  end

  # The address and the bytes of a tensor. Nx 0.9 answers `{:ok, pointer}`, Nx 0.13 the pointer itself.
  defp place!(tensor, what) do
    case apply(Nx, :to_pointer, [tensor, [mode: :local]]) do
      {:ok, pointer} -> numbers!(pointer, what)
      {:error, reason} -> refuse!(what, "an address", Options.shown(reason))
      pointer -> numbers!(pointer, what)
    end
  end

  defp numbers!(%{kind: :local, address: address, data_size: bytes}, _what)
       when address in 0..0xFFFF_FFFF_FFFF_FFFF and bytes in 0..0xFFFF_FFFF_FFFF_FFFF,
       do: {address, bytes}

  defp numbers!(%{kind: kind}, what) when kind != :local,
    do: refuse!(what, "a pointer of kind :local", "one of kind #{Options.shown(kind)}")

  defp numbers!(other, what), do: refuse!(what, "an Nx.Pointer", Options.shown(other))

  defp refuse!(what, expected, got),
    do: raise(Tensor.misfit("the pointer of #{what}", expected, got, :forward))

  # Nx and EXLA raise exceptions of several kinds, such as for a tensor that was deallocated.
  defp asked(what, fun) do
    {:ok, fun.()}
  rescue
    error in Error ->
      {:error, error}

    error ->
      details = %{what: "#{what} of EXLA.Backend", reason: Exception.message(error)}
      {:error, %Error{kind: :unavailable, op: :forward, details: details}}
  end
end
