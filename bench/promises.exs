# Verifies two promises about training times, on real games:
#
#     SCONCE_REPLAYS=replays mix run promises.exs
#
#   * `mix sconce.train` has made and saved its first step within 2 s of the start of the command, including
#     the start of its VM and all reads of the corpus, for an MLP and a GRU;
#   * two threads embed 1.4 M frames within 30 s: read, draw, embed and mirror them, add noise, and deliver
#     them as batches. Games are read repeatedly to reach that count.
#
# The best of three tries counts, because other work on this machine only makes a try slower. The status is
# 1 if a promise does not hold.

Code.require_file("games.exs", __DIR__)

defmodule Promises do
  alias Sconce.{Figures, Loader}

  @tries 3
  @frames 1_400_000
  @first_step_s 2.0
  @embedding_s 30.0

  def main do
    dir = Path.join(System.tmp_dir!(), "sconce-promises-#{System.pid()}")

    try do
      corpus = Games.corpus!(dir)
      IO.puts(inspect(corpus))
      kept = for backbone <- ~w(mlp gru), do: first_step(backbone, corpus, dir)
      unless Enum.all?([embedding(corpus) | kept]), do: System.halt(1)
    after
      File.rm_rf!(dir)
    end
  end

  defp first_step(backbone, corpus, dir) do
    seconds =
      best(fn try ->
        out = Path.join(dir, "#{backbone}-#{try}")
        args = ["sconce.train", "--corpus", corpus.dir, "--out", out, "--backbone", backbone]
        more = ~w(--steps 100000 --validate-every 100000 --save-every 1)
        began = now()

        command =
          Port.open({:spawn_executable, System.find_executable("mix")}, args: args ++ more)

        seconds = wait(Path.join(out, "last.safetensors"), began)
        {:os_pid, pid} = Port.info(command, :os_pid)
        {_said, 0} = System.cmd("kill", ["-9", "#{pid}"])
        seconds
      end)

    kept("first step of #{backbone}", seconds, @first_step_s)
  end

  defp wait(file, began) do
    cond do
      File.exists?(file) -> now() - began
      now() - began > 60 -> raise "no step within a minute"
      true -> Process.sleep(5) && wait(file, began)
    end
  end

  defp embedding(corpus) do
    options =
      [batch_size: 256, window_size: 60, stride: 60, mirror: 0.5, noise: 0.5] ++
        [loader_threads: 2, prefetch: 4, epochs: :infinity, as: :binaries]

    seconds =
      best(fn _try ->
        began = now()
        batches = Loader.stream(corpus, options)
        Enum.take(batches, ceil(@frames / (options[:batch_size] * options[:window_size])))
        now() - began
      end)

    IO.puts("#{Figures.grouped(round(@frames / seconds))} frames/s")
    kept("#{Figures.grouped(@frames)} frames embedded by two threads", seconds, @embedding_s)
  end

  defp best(measure), do: 1..@tries |> Enum.map(measure) |> Enum.min()

  defp kept(what, seconds, most) do
    IO.puts(:io_lib.format("~-50ts ~6.2f s of ~.1f s", [what, seconds, most]))
    seconds <= most
  end

  defp now, do: System.monotonic_time(:microsecond) / 1.0e6
end

Promises.main()
