# Checks that ended sessions leave nothing behind:
#
#     mix run sessions.exs
#     mix run sessions.exs --sessions 100000 --rounds 3 --backbone gru --serving
#
# Each round opens sessions in sequence, uses each once and closes it. It then opens as many in processes, a
# hundred at a time, that use them and end. Sessions, processes and resident memory are compared with the
# start. The first round includes what the library keeps permanently (threads, allocator buffers), so later
# rounds must not add to it. The script fails if sessions are left, or if the memory after the last round
# exceeds that after the first by a tenth.

defmodule Sessions do
  alias Sconce.Bench.{Machine, Output}
  alias Sconce.{Frame, Native, Policy, Serving, Session}

  @switches [sessions: :integer, rounds: :integer, backbone: :string, serving: :boolean]
  @defaults [sessions: 100_000, rounds: 3, backbone: "mlp", serving: false]
  @at_once 100
  @page 4096

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    IO.puts(Output.header(Machine.describe()))

    backbone =
      Enum.find(Sconce.Temporal.backbones(), &(to_string(&1) == opts[:backbone])) ||
        raise "unknown backbone #{opts[:backbone]}"

    spec = [backbone: backbone, embedding: {:melee, layout: :packed}]
    {:ok, policy} = Policy.init(spec, seed: 1)
    open = open(policy, opts[:serving])
    count = opts[:sessions]
    say("start", count, nil)

    [first | _] =
      rounds =
      for round <- 1..opts[:rounds] do
        say("round #{round}, closed", count, time(fn -> close(open, count) end))
        say("round #{round}, owners ended", count, time(fn -> abandon(open, count) end))
      end

    List.last(rounds) <= first * 1.1 ||
      raise "memory grows: #{inspect(rounds)} MB after each round"
  end

  defp open(policy, false), do: fn -> Session.open(policy) end

  defp open(policy, true) do
    {:ok, serving} = Serving.start_link(policy: policy)
    fn -> Serving.open(serving) end
  end

  defp time(fun), do: fun |> :timer.tc() |> elem(0)

  defp use!(open) do
    {:ok, session} = open.()
    {:ok, _action} = Session.act(session, frame())
    session
  end

  defp close(open, count), do: for(_ <- 1..count, do: :ok = Session.close(use!(open)))

  defp abandon(open, count) do
    for some <- Enum.chunk_every(1..count, @at_once) do
      owners = for _ <- some, do: spawn_monitor(fn -> use!(open) end)

      for {pid, monitor} <- owners do
        receive do
          {:DOWN, ^monitor, _, ^pid, reason} -> reason == :normal || raise inspect(reason)
        end
      end
    end
  end

  defp say(what, count, us) do
    :erlang.garbage_collect()
    # Sessions end shortly after their owners.
    Process.sleep(200)
    each = if us, do: "#{Float.round(us / count, 1)} us each, ", else: ""
    live = Native.session_count()
    processes = length(Process.list())
    vm = div(:erlang.memory(:total), 1_000_000)

    rss = rss()

    IO.puts(
      "#{what}: #{each}#{live} sessions, #{processes} processes, #{rss} MB resident, #{vm} MB in the VM"
    )

    live == 0 || raise "#{live} sessions are left"
    rss
  end

  defp rss do
    [_size, resident | _] = "/proc/self/statm" |> File.read!() |> String.split()
    div(String.to_integer(resident) * @page, 1_000_000)
  end

  defp frame do
    player = %{
      percent: 12.0,
      facing: 1,
      x: -20.0,
      y: 0.0,
      action: 14,
      character: 1,
      on_ground: true,
      stock: 4
    }

    %Frame{own: player, opponent: %{player | x: 20.0}, stage: 31}
  end
end

Sessions.main(System.argv())
