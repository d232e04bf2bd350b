defmodule Sconce.Trainer.SignalsTest do
  # Handlers of signals belong to the whole VM.
  use ExUnit.Case, async: false

  alias Sconce.Trainer.Signals

  defp handlers, do: :gen_event.which_handlers(:erl_signal_server)

  test "its handler replaces OTP's while the work runs, and no longer, even if the work raises" do
    assert {during, :done} = Signals.stopping(fn -> {handlers(), :done} end)
    assert Signals in during and :erl_signal_handler not in during
    assert :erl_signal_handler in handlers() and Signals not in handlers()

    assert_raise RuntimeError, "ended", fn -> Signals.stopping(fn -> raise "ended" end) end
    assert :erl_signal_handler in handlers() and Signals not in handlers()
  end

  test "within work that it protects already, it changes nothing" do
    inner = fn -> Signals.stopping(fn -> handlers() end) end
    assert Signals in Signals.stopping(inner)
    assert :erl_signal_handler in handlers() and Signals not in handlers()
  end
end
