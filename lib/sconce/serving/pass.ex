defmodule Sconce.Serving.Pass do
  @moduledoc false
  # A forward pass in a serving, for a caller that keeps the state: submits the request and waits until the deadline.

  alias Sconce.{Deadline, Error, Native, Options, Policy, Serving}
  alias Sconce.Policy.Tensors
  alias Sconce.Serving.{Catalogue, Gate, Lookup, Peer}

  # Requests of more bytes are copied on a dirty scheduler.
  @inline_bytes 65_536

  @doc "Computes the outputs of a call in a serving of this node or of another one."
  @spec forward(Serving.serving(), term, term, keyword) ::
          {:ok, Policy.output()} | {:error, Error.t()}
  def forward(serving, frames, state, opts) do
    start = System.monotonic_time()

    options = Options.validate!(opts, Catalogue.schema(:forward))

    {[deadline_ms: deadline_ms], options} = Keyword.split(options, [:deadline_ms])

    with {:ok, frames, options, form} <-
           Tensors.read(frames, :windows, [state: state] ++ options),
         {:ok, out} <-
           serving
           |> Lookup.find(:forward, deadline_ms, start)
           |> forward_at({frames, options}, deadline_ms, start)
           |> Deadline.of_call(deadline_ms, start),
         do: {:ok, Tensors.write(out, form, options[:return_sequences])}
  end

  defp forward_at({:here, serving}, pass, deadline_ms, start),
    do: run(serving, pass, deadline_ms, start, nil)

  defp forward_at({:there, node, there}, pass, deadline_ms, start) do
    args = [there, self(), pass, Deadline.left(deadline_ms, start)]
    Peer.call(node, :forward, :forward_for, args, deadline_ms, start)
  end

  defp forward_at(error, _pass, _deadline_ms, _start), do: error

  @doc """
  Computes the outputs of a call that began at `start`. `watch` is nil, or a monitor of the caller on another node: this
  process exits when that caller ends.
  """
  @spec run(Serving.t(), {term, keyword}, non_neg_integer | nil, integer, reference | nil) ::
          {:ok, Policy.output()} | {:error, Error.t()}
  def run(%{ref: ref, policy: policy, gate: gate}, {frames, options}, deadline_ms, start, watch) do
    Policy.Pass.pass(policy, frames, options, fn rows, shape, given, look ->
      Gate.pass(gate, :forward, fn ->
        how = {look, Deadline.left(deadline_ms, start)}
        wait(deadline_ms, start, watch, &submit(ref, &1, rows, shape, given, how))
      end)
    end)
  end

  defp submit(serving, ref, rows, shape, given, how) do
    if bytes([rows | Tuple.to_list(given)]) <= @inline_bytes,
      do: Native.serving_forward(serving, ref, rows, shape, given, how),
      else: Native.serving_forward_many(serving, ref, rows, shape, given, how)
  end

  defp bytes(binaries), do: Enum.sum(for(binary <- binaries, binary, do: byte_size(binary)))

  defp wait(deadline_ms, start, watch, submit) do
    ref = make_ref()

    with {:ok, ticket} <- submit.(ref) do
      receive do
        {:sconce, ^ref, answer} -> answer
        {:DOWN, ^watch, :process, _caller, _reason} -> exit(:normal)
      after
        Deadline.timeout(deadline_ms, start) ->
          # Either the request was abandoned in time, or its answer is already on its way.
          if Native.serving_abandon(ticket),
            do: {:error, Error.late(:forward, deadline_ms, start)},
            else: receive(do: ({:sconce, ^ref, answer} -> answer))
      end
    end
  end
end
