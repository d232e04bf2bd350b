defmodule Sconce.GPU.Driver do
  @moduledoc false
  # Questions to the driver of NVIDIA's GPUs. A native thread of its own asks them, so that a driver which takes
  # its time, or hangs, holds up no scheduler and nobody beyond a deadline.

  alias Sconce.{Config, Error, Native}

  # Waking the cards of a machine takes seconds where nothing keeps its driver awake.
  @deadline_ms 10_000

  # What mends each cause, or nil. The names are those of `Cause` in native/cuda/src/error.rs.
  @causes [
    no_library: {"the driver's library is not there", "mix sconce.doctor"},
    not_nvml: {"what was opened is not NVML", "name NVML's own file in SCONCE_NVML"},
    too_old: {"the driver lacks a function", "install a newer driver"},
    no_driver: {"the kernel module is not loaded", "sudo modprobe nvidia"},
    no_permission: {"this user may not use the GPU", "let this user read and write /dev/nvidia*"},
    version_mismatch:
      {"library and kernel module differ, as after an update",
       "restart the machine, or load its nvidia kernel modules anew"},
    lost: {"the card fell off the bus; the kernel's log says why (Xid)", "restart the machine"},
    reset_required: {"the card has to be reset", "sudo nvidia-smi --gpu-reset"},
    not_supported: {"this card does not tell it", nil},
    other: {"whatever else NVML says", nil}
  ]

  @type submit :: (reference, Path.t() | nil -> {:ok, reference} | {:error, Error.t()})

  @doc "Every cause of a driver's refusal: what it is, and what mends it."
  @spec causes() :: [{atom, {String.t(), String.t() | nil}}]
  def causes, do: @causes

  @doc "Asks a question that `submit` hands to the driver's thread; an error bears the name `op`."
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
        # Either it will not come, or it is on the way.
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
