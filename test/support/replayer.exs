# Plays a file of messages to a bot through `Sconce.Bot.Bridge.Program`, without Sconce:
#
#     elixir --erl "-noinput +S 1:1 +sbwt none" replayer.exs PLAN HZ LOG PHASE
#
# PLAN has, for each message, `<<ticks::32, size::32, message::binary-size(size)>>`: a message, in external form, is due
# `ticks` periods after the one before, and one without bytes ends the program. LOG gets the time of each message and
# of each input, in microseconds; a program that is started again goes on after the last message in LOG. Messages are due
# PHASE of a period after whole periods of the system's clock, so that two programs do not disturb each other. At the end
# the program waits for the end of its input.

[plan, hz, log, phase] = System.argv()
period_us = 1_000_000 / String.to_float(hz)
phase_us = period_us * String.to_float(phase)

# The messages that an earlier start has sent.
done =
  if File.exists?(log),
    do: File.stream!(log) |> Enum.count(&String.starts_with?(&1, "sent")),
    else: 0

port = Port.open({:fd, 0, 1}, [:binary, :eof, packet: 4])
file = File.open!(log, [:append, :raw, :delayed_write])
now = fn -> System.monotonic_time(:microsecond) end
write = fn words -> :file.write(file, [Enum.join(words, " "), "\n"]) end

defmodule Replayer do
  def until(due, port, now, write) do
    wait = due - now.()

    receive do
      {^port, {:data, message}} ->
        came = now.()
        {:input, input} = :erlang.binary_to_term(message)
        write.(["input", came, :erlang.phash2(input)])
        until(due, port, now, write)

      {^port, :eof} ->
        :over
    after
      max(div(trunc(wait), 1000), 0) ->
        if now.() >= due, do: :due, else: until(due, port, now, write)
    end
  end
end

plan = File.open!(plan, [:read, :raw, :binary, read_ahead: 1_000_000])

next = fn ->
  with {:ok, <<ticks::32, size::32>>} <- :file.read(plan, 8) do
    {:ok, message} = if size == 0, do: {:ok, :die}, else: :file.read(plan, size)
    {ticks, message}
  end
end

for _ <- 1..done//1, do: next.()

play = fn play, due ->
  case next.() do
    :eof ->
      :end

    {ticks, message} ->
      due = due + ticks * period_us

      case {Replayer.until(due, port, now, write), message} do
        {:over, _message} ->
          :over

        {:due, :die} ->
          write.(["sent", now.(), "die"])
          :file.sync(file)
          System.halt(1)

        {:due, message} ->
          kind = message |> :erlang.binary_to_term() |> elem(0)
          write.(["sent", now.(), kind])
          Port.command(port, message)
          play.(play, due)
      end
  end
end

periods = Float.ceil(System.system_time(:microsecond) / period_us)
first = now.() + periods * period_us + phase_us - System.system_time(:microsecond)

# After the last message come the last inputs, and the end of the bot.
if play.(play, first) == :end, do: Replayer.until(now.() + 3_600_000_000, port, now, write)
:file.sync(file)
