[
  inputs: ["{mix,.formatter}.exs", "{build,config,lib,test,bench}/**/*.{ex,exs}"]
]
