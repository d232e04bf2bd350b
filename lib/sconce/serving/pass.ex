defmodule Sconce.Serving.Pass do
  @moduledoc false
  # A forward pass in a serving, for a caller that keeps the state: submits the request and waits until the deadline.

  alias Sconce.{Deadline, Error, Native, Policy, Serving}
  alias Sconce.Serving.Gate

  # Requests of more bytes are copied on a dirty scheduler.
  @inline_bytes 65_536

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
