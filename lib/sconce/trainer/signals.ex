defmodule Sconce.Trainer.Signals do
  @moduledoc false
  # While a task trains, SIGHUP and SIGQUIT stop the VM as SIGTERM does, which lets a run save its state. This handler
  # replaces OTP's, which halts at once on SIGQUIT, and passes all other signals to it.

  @behaviour :gen_event

  @otp :erl_signal_handler
  @stop [:sighup, :sigquit]

  @doc "Runs `work` with these signals handled, and restores their handlers afterwards."
  @spec stopping((() -> result)) :: result when result: term
  def stopping(work) do
    # If OTP's handler is missing, the host has replaced it.
    if @otp in :gen_event.which_handlers(:erl_signal_server), do: trapped(work), else: work.()
  end

  defp trapped(work) do
    # The handler is installed before the signals are trapped and removed after that: OTP's handler would drop a SIGHUP.
    :ok = :gen_event.swap_handler(:erl_signal_server, {@otp, []}, {__MODULE__, []})

    try do
      # Does not trap an ignored signal: under `nohup`, SIGHUP stays ignored.
      for signal <- @stop, not ignored?(signal), do: take(signal)
      work.()
    after
      # Restores only SIGHUP: OTP itself handles SIGQUIT.
      unless ignored?(:sighup) or hosts?(:sighup), do: :os.set_signal(:sighup, :default)
      :ok = :gen_event.swap_handler(:erl_signal_server, {__MODULE__, []}, {@otp, []})
    end
  end

  # Returns whether the host traps the signal by `System.trap_signal/2`.
  defp hosts?(signal) do
    Enum.any?(
      :gen_event.which_handlers(:erl_signal_server),
      &match?({System.SignalHandler, {^signal, _id}}, &1)
    )
  end

  # Windows has neither SIGHUP nor SIGQUIT, so `:os.set_signal/2` raises.
  defp take(signal) do
    :os.set_signal(signal, :handle) == :ok
  rescue
    ArgumentError -> false
  end

  @numbers %{sighup: 1, sigquit: 3}

  # Reads the mask of ignored signals, which only Linux has; elsewhere no signal counts as ignored.
  defp ignored?(signal) do
    with {:ok, status} <- File.read("/proc/self/status"),
         [_, mask] <- Regex.run(~r/^SigIgn:\s*([0-9a-f]+)/m, status) do
      bit = Bitwise.bsl(1, @numbers[signal] - 1)
      Bitwise.band(String.to_integer(mask, 16), bit) != 0
    else
      _unknown -> false
    end
  end

  @doc "Returns the line on the signals that end a run, and on what Ctrl-C loses; `minutes` is `:save_minutes`."
  @spec text(number | nil) :: String.t()
  def text(minutes) do
    lost =
      if minutes,
        do: "loses all steps since the last save, up to #{number(minutes)} min (--save-minutes)",
        else: "loses all steps since the last save (no --save-minutes)"

    "TERM, HUP and QUIT end the run with its state saved; Ctrl-C #{lost}"
  end

  defp number(minutes) when trunc(minutes) == minutes, do: trunc(minutes)
  defp number(minutes), do: minutes

  @impl true
  def init(_args), do: {:ok, []}

  @impl true
  def handle_event(signal, state) when signal in @stop do
    :init.stop()
    {:ok, state}
  end

  def handle_event(signal, state) do
    @otp.handle_event(signal, state)
    {:ok, state}
  end

  @impl true
  def handle_info(_message, state), do: {:ok, state}

  @impl true
  def handle_call(_request, state), do: {:ok, :ok, state}
end
