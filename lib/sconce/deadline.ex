defmodule Sconce.Deadline do
  @moduledoc false
  # Deadlines of calls, in milliseconds since `start`, a `System.monotonic_time/0`. `nil` means no deadline.

  alias Sconce.Error

  @doc "Milliseconds left for a part of the call, or nil without a deadline."
  @spec left(non_neg_integer | nil, integer) :: non_neg_integer | nil
  def left(nil, _start), do: nil
  def left(deadline_ms, start), do: timeout(deadline_ms, start)

  @doc """
  Milliseconds left until the deadline, as a timeout of `receive`. The elapsed time is rounded down, so that no error
  of kind `:deadline` comes too early.
  """
  @spec timeout(non_neg_integer | nil, integer) :: timeout
  def timeout(nil, _start), do: :infinity

  def timeout(deadline_ms, start) do
    passed = System.convert_time_unit(System.monotonic_time() - start, :native, :millisecond)
    max(deadline_ms - passed, 0)
  end

  @doc "Puts the deadline of the whole call into a `:deadline` error, instead of the time left for its last part."
  @spec of_call(answer, non_neg_integer | nil, integer) :: answer when answer: term
  def of_call({:error, %Error{kind: :deadline, op: op}}, deadline_ms, start)
      when deadline_ms != nil,
      do: {:error, Error.late(op, deadline_ms, start)}

  def of_call(answer, _deadline_ms, _start), do: answer
end
