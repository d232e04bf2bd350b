# Plays a file of messages to a bot through `Sconce.Bot.Bridge.Program`, without Sconce:
#
#     elixir --erl "-noinput" replayer.exs PLAN HZ LOG
#
# PLAN is the external form of a list of `{ticks, message}`: a message is due `ticks` periods after the one before, and
# `:die` ends the program. LOG gets the time of each message and of each input, in microseconds; a program that is
# started again goes on after the last message in LOG. At the end the program waits for the end of its input.

[plan, hz, log] = System.argv()
messages = plan |> File.read!() |> :erlang.binary_to_term()
period_us = 1_000_000 / String.to_float(hz)

# The messages that an earlier start has sent.
done = if File.exists?(log), do: File.stream!(log) |> Enum.count(&String.starts_with?(&1, "sent")), else: 0
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
      max(div(trunc(wait), 1000), 0) -> if now.() >= due, do: :due, else: until(due, port, now, write)
    end
  end
end

start = now.()

messages
|> Enum.drop(done)
|> Enum.reduce_while(start, fn {ticks, message}, due ->
  due = due + ticks * period_us

  case Replayer.until(due, port, now, write) do
    :over ->
      {:halt, due}

    :due when message == :die ->
      write.(["sent", now.(), "die"])
      :file.sync(file)
      System.halt(1)

    :due ->
      packed = :erlang.term_to_binary(message)
      write.(["sent", now.(), elem(message, 0)])
      Port.command(port, packed)
      {:cont, due}
  end
end)

# The last inputs, and the end of the bot.
Replayer.until(now.() + 3_600_000_000, port, now, write)
:file.sync(file)
