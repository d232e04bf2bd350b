defmodule Sconce.Zoo.Audio do
  @moduledoc false
  # Networks of sounds and of speech as text: {name, task, thousands of parameters of the published code, declaration}.

  import Sconce.Zoo.Blocks

  def networks do
    [
      {:keyword_spot, "12 spoken words", 58.4,
       input: [40, 49],
       layers:
         conv(64, 3, stride: 2) ++
           conv(64, 3, stride: 2) ++ [:flatten, {:dense, 44, activation: :relu}, {:dense, 12}]},
      {:audio_event, "10 classes of sounds", 26.8,
       input: [40, 49],
       layers:
         conv(48, 3, stride: 2) ++
           conv(64, 3, stride: 2) ++
           conv(48, 3) ++ [:global_mean, {:dense, 32, activation: :relu}, {:dense, 10}]},
      {:speech_enhance, "samples of speech without noise", 16.2,
       input: [1, 1600],
       layers:
         conv(16, 7, stride: 2) ++
           conv(32, 5, stride: 2) ++
           conv(45, 5, stride: 2) ++
           [{:upsample, 2}] ++
           conv(32, 3) ++
           [{:upsample, 2}] ++ conv(16, 3) ++ [{:upsample, 2}, {:conv, 1, 7, padding: 3}]},
      {:voice_activity, "speech or none", 38.2,
       input: [40, 100],
       layers:
         conv(32, 5, stride: 2) ++
           conv(48, 5, stride: 2) ++
           conv(64, 5, stride: 2) ++ conv(48, 3) ++ [:global_mean, {:dense, 2}]},
      {:speaker_id, "a vector of 64 numbers of a speaker", 49.7,
       input: [40, 100],
       layers:
         conv(48, 5, stride: 2) ++
           conv(64, 5, stride: 2) ++
           conv(64, 3, stride: 2) ++ conv(48, 3) ++ [:global_mean, {:dense, 64}]},
      {:music_genre, "20 genres", 25.1,
       input: [1, 128, 128],
       layers:
         conv(16, 3, stride: 2) ++
           conv(32, 3, stride: 2) ++ conv(64, 3, stride: 2) ++ [:global_mean, {:dense, 20}]},
      {:emotion_recog, "7 emotions of a voice", 37.5,
       input: [40, 100],
       layers:
         conv(48, 5, stride: 2) ++
           conv(64, 3, stride: 2) ++
           [{:attention, 4}, :global_mean, {:dense, 24, activation: :relu}, {:dense, 7}]},
      {:sentiment, "3 classes of 50 tokens", 181,
       input: {:tokens, 50, vocabulary: 5000},
       layers:
         embed() ++
           conv(48, 3) ++
           conv(64, 3) ++ [:global_mean, {:dense, 64, activation: :relu}, {:dense, 3}]},
      {:intent_classify, "20 classes of 30 tokens", 182,
       input: {:tokens, 30, vocabulary: 5000},
       layers: embed() ++ conv(64, 3) ++ [{:attention, 4}, :global_mean, {:dense, 20}]},
      {:language_detect, "10 spoken languages", 46.0,
       input: [40, 100],
       layers:
         conv(48, 5, stride: 2) ++
           conv(64, 5, stride: 2) ++
           conv(64, 3, stride: 2) ++
           [:global_mean, {:dense, 112, activation: :relu}, {:dense, 10}]}
    ]
  end
end
