"""What an operator asks: is this set-up sound (`doctor`), which drafter fits (`pairing`)."""
