dir = Path.join(System.tmp_dir!(), "sconce-seams-#{System.pid()}")
games = for g <- 1..4, do: {for(t <- 1..60, do: t / 60), for(t <- 1..60, do: rem(t + g, 3))}
heads = [go: {:categorical, 3}]
{:ok, corpus} = Sconce.Corpus.build({:vector, 1}, games, into: Path.join(dir, "corpus"), heads: heads)
own = [corpus: corpus, out: Path.join(dir, "run"), steps: 20, batch_size: 8, window_size: 8, hidden_size: 8]
{:ok, run} = Sconce.Trainer.start_link(own ++ [objective: [z_loss: 0.1], prune_below: 0.05])
{:ok, report} = Sconce.Trainer.await(run, 60_000)
%{z_loss: z} = List.last(report.history).figures
IO.puts("z_loss #{z} after #{report.steps} steps, options #{inspect(Map.take(report.options, [:z_loss, :prune_below]))}")
true = is_float(z) and File.read!(report.curve) =~ "z loss"
true = "--prune-below" in for({name, _} <- Mix.Tasks.Sconce.Train.schema(), do: Sconce.Switches.switch(name))
File.rm_rf!(dir)
