"""How answers are read and compared, alike in data and in rewards: text, numbers, boxes, choices, expressions."""
