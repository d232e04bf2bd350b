defmodule Sconce.GPU.Driver do
  @moduledoc false
  # Queries to NVIDIA's driver. Queries run on a separate native thread, so that a slow or hung driver blocks no
  # scheduler, and blocks a caller only until its deadline.

  alias Sconce.{Config, Error, Native}

  # Without a persistence daemon, the driver takes seconds to initialize the cards.
  @deadline_ms 10_000

  # Each cause with its meaning and its remedy, or nil. The names are those of `Cause` in native/cuda/src/error.rs.
  @causes [
    no_library: {"the driver's library was not found", "mix sconce.doctor"},
    not_nvml: {"the opened library is not NVML", "name the file of NVML in SCONCE_NVML"},
    too_old: {"the driver lacks a function", "install a newer driver"},
    no_driver: {"the kernel module is not loaded", "sudo modprobe nvidia"},
    no_permission: {"this user may not use the GPU", "let this user read and write /dev/nvidia*"},
    version_mismatch:
      {"library and kernel module have different versions, as after an update",
       "restart the machine, or reload its nvidia kernel modules"},
    lost:
      {"the card fell off the bus; the kernel log has the reason (Xid)", "restart the machine"},
    reset_required: {"the card needs a reset", "sudo nvidia-smi --gpu-reset"},
    not_supported: {"this card does not report the value", nil},
    other: {"any other error of NVML", nil}
  ]

  @type submit :: (reference, Path.t() | nil -> {:ok, reference} | {:error, Error.t()})

  @doc "Every cause of a failed query, with its meaning and its remedy."
  @spec causes() :: [{atom, {String.t(), String.t() | nil}}]
  def causes, do: @causes

  @doc "Sends a query to the driver's thread by `submit`, and waits for the answer. `op` is the name in errors."
  @spec ask(atom, submit, non_neg_integer) :: {:ok, term} | {:error, Error.t()}
  def ask(op, submit, deadline_ms \\ @deadline_ms) do
    start = System.monotonic_time()
    ref = make_ref()

    with {:ok, asked} <- submit.(ref, Config.get(:nvml)),
         {:ok, answer} <- wait(op, ref, asked, deadline_ms, start) do
      {:ok, answer}
    else
      {:error, error} -> {:error, explained(%{error | op: op})}
    end
  end

  defp wait(op, ref, asked, deadline_ms, start) do
    receive do
      {:sconce, ^ref, answer} -> answer
    after
      deadline_ms ->
        # Either the query was abandoned in time, or its answer is already on its way.
        if Native.gpu_abandon(asked),
          do: {:error, Error.late(op, deadline_ms, start)},
          else: receive(do: ({:sconce, ^ref, answer} -> answer))
    end
  end

  defp explained(%Error{details: %{cause: cause} = details} = error) do
    cause = String.to_existing_atom(cause)

    case @causes[cause] do
      {_meaning, nil} -> %{error | details: %{details | cause: cause}}
      {_meaning, mend} -> %{error | details: Map.merge(details, %{cause: cause, mend: mend})}
    end
  end

  defp explained(error), do: error
end
